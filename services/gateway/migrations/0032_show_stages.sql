-- 0032_show_stages.sql: the stages of a job, as asked for and as planned, and the one that it is in
SET LOCAL lock_timeout = '4s';
ALTER TABLE job ADD COLUMN stage int;
ALTER TABLE job ADD COLUMN stages jsonb NOT NULL DEFAULT '[]';
ALTER TABLE job ADD COLUMN stage_plans jsonb NOT NULL DEFAULT '[]';
-- What becomes of a dataset stands in the timeline of the jobs on it.
CREATE INDEX job_of_stage_datasets ON job USING gin (stages jsonb_path_ops);
