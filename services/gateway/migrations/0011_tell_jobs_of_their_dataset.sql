-- 0011_tell_jobs_of_their_dataset.sql: the fact that answered a dataset's request, for the timelines of its jobs
ALTER TABLE dataset ADD COLUMN answer jsonb;
CREATE INDEX job_of_dataset ON job (dataset_id);
