-- 0010_find_attempts_that_run.sql: attempts that hold nodes are read every few seconds, beside a long history
SET LOCAL lock_timeout = '4s';
CREATE INDEX cost_running ON cost (job_id, attempt) WHERE NOT is_ended AND until IS NULL AND pool <> '';
