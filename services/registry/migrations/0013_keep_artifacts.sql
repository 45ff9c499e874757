-- 0013_keep_artifacts.sql: what a version was announced as, by which other checkpoints of its job are registered; NULL where
-- it was registered before
SET LOCAL lock_timeout = '4s';
ALTER TABLE model_version ADD COLUMN artifact jsonb;
