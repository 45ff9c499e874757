-- 0012_index_jobs_under_way.sql: jobs in a phase that has a deadline are found without reading those that wait
SET LOCAL lock_timeout = '4s';
CREATE INDEX job_under_way ON job (id) WHERE state IN ('provisioning', 'running', 'stopping', 'evaluating');
