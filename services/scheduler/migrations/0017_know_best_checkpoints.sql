-- 0017_know_best_checkpoints.sql: the best checkpoint of the run that the newest verified one is of
SET LOCAL lock_timeout = '4s';
ALTER TABLE job ADD COLUMN best jsonb;
