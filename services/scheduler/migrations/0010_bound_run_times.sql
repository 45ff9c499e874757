-- 0010_bound_run_times.sql: when an attempt has given its nodes back at the latest, and kinds of waiting jobs that many
-- different run times do not make many: those within a factor of two are one
SET LOCAL lock_timeout = '4s';
ALTER TABLE attempt ADD COLUMN ends_by timestamptz;
ALTER TABLE job DROP COLUMN kind;
ALTER TABLE job ADD COLUMN kind text NOT NULL GENERATED ALWAYS AS (
    md5(tenant || ' ' || (spec ->> 'tier') || ' ' || ((spec -> 'resources') - 'max_run_seconds')::text || ' '
        || coalesce(ceil(log(2, (spec -> 'resources' ->> 'max_run_seconds')::numeric))::text, '') || ' '
        || (turned_away <> '{}')::text)
) STORED;
CREATE INDEX job_waiting ON job (kind, queued_at, id) WHERE state = 'queued';
