-- 0001_create_auditor.sql: how far each partition was read, and the statements that are not yet followed by another
CREATE TABLE chain (
    topic        text   NOT NULL,
    partition    int    NOT NULL,
    start_offset bigint NOT NULL,
    next_offset  bigint NOT NULL CHECK (next_offset >= start_offset),
    link         bytea  NOT NULL CHECK (length(link) = 32),
    oldest_ms    bigint,
    newest_ms    bigint,
    PRIMARY KEY (topic, partition)
);

-- Signed here first and put to S3 afterwards, so that a statement is never written in two ways.
CREATE TABLE statement (
    number   bigint      PRIMARY KEY,
    sha256   text        NOT NULL,
    document bytea       NOT NULL,
    put_at   timestamptz
);
