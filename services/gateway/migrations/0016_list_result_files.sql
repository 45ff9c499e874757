-- 0016_list_result_files.sql: the table of a job's steps is a file of its tenant
SET LOCAL lock_timeout = '4s';
ALTER TABLE job ADD COLUMN result_files text[] NOT NULL DEFAULT '{}';
