-- 0027_upload_in_parts.sql: large files come in parts, which are put together when all are there
SET LOCAL lock_timeout = '4s';
CREATE TABLE upload (
    upload_id  text PRIMARY KEY,
    tenant     text        NOT NULL,
    filename   text        NOT NULL,
    purpose    text        NOT NULL,
    size_bytes bigint      NOT NULL,
    -- `pending`, `completed` or `cancelled`
    state      text        NOT NULL DEFAULT 'pending',
    file_id    text,
    created_at timestamptz NOT NULL
);
CREATE INDEX upload_age ON upload (created_at);

-- A part is a file that is never confirmed: its bytes go as those of an interrupted upload do.
ALTER TABLE file ADD COLUMN upload_id text;
CREATE INDEX file_of_upload ON file (upload_id) WHERE upload_id IS NOT NULL;
