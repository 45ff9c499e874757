-- 0048_index_validated_steps.sql: few of a job's steps are measured on the validation file, and open pages look for them
SET LOCAL lock_timeout = '4s';
CREATE INDEX step_validated ON step (job_id, step) WHERE validation IS NOT NULL;
