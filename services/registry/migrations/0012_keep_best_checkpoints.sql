-- 0012_keep_best_checkpoints.sql: the validation loss by which a version's checkpoint is the best of its run, NULL where it is
-- the last one; and the job that wrote the checkpoint, where the version's job continued that one
SET LOCAL lock_timeout = '4s';
ALTER TABLE model_version ADD COLUMN best_valid_loss double precision;
ALTER TABLE model_version ADD COLUMN bundle_job_id text;
