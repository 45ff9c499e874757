-- 0014_index_back_offs.sql: a back-off that ended is found without reading the queue
SET LOCAL lock_timeout = '4s';
CREATE INDEX job_backing_off ON job (not_before) WHERE state = 'queued' AND not_before IS NOT NULL;
