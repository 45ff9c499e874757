-- 0044_find_jobs_started_from.sql: the lineage of a version shows the jobs that were started from it
SET LOCAL lock_timeout = '4s';
CREATE INDEX job_started_from ON job (tenant, (spec #>> '{start_from,job_id}'), created_at DESC)
    WHERE spec #>> '{start_from,job_id}' IS NOT NULL;
