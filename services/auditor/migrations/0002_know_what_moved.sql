-- 0002_know_what_moved.sql: the link that the last statement covers, so that the next one names only what moved
ALTER TABLE chain ADD COLUMN signed_link bytea CHECK (length(signed_link) = 32);
