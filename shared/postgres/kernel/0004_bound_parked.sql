-- 0004_bound_parked.sql: of a record that cannot be read a bounded part is kept, and what it was as a whole

ALTER TABLE parked
    ADD COLUMN value_bytes  bigint,
    ADD COLUMN value_sha256 bytea,
    -- Less is kept of the key, the headers or the value than the record had.
    ADD COLUMN is_cut       boolean NOT NULL DEFAULT false;
