-- Waiting jobs of one kind differ in age alone, so only the oldest of each kind can be next, however long the
-- queue is.
ALTER TABLE job ADD COLUMN kind text NOT NULL GENERATED ALWAYS AS (
    md5(tenant || ' ' || (spec ->> 'tier') || ' ' || (spec ->> 'resources') || ' ' || (turned_away <> '{}')::text)
) STORED;
CREATE INDEX job_waiting ON job (kind, queued_at, id) WHERE state = 'queued';
DROP INDEX job_queued;
