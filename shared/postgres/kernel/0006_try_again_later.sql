-- 0006_try_again_later.sql: a message whose handler fails waits in a row, and not in the loop that all share

ALTER TABLE waiting
    ADD COLUMN failures   int         NOT NULL DEFAULT 0,
    -- Of the next try; nothing for a message that waits for its parent, which is tried whenever others are.
    ADD COLUMN not_before timestamptz NOT NULL DEFAULT '-infinity';
