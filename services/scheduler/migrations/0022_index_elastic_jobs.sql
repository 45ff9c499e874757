-- 0022_index_elastic_jobs.sql: jobs that run and may have another number of nodes
SET LOCAL lock_timeout = '4s';
CREATE INDEX job_elastic ON job (id) WHERE state = 'running' AND spec -> 'resources' ? 'min_nodes';
