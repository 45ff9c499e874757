-- 0011_keep_starts.sql: the version or checkpoint that a version's training started from; NULL is the base model
SET LOCAL lock_timeout = '4s';
ALTER TABLE model_version ADD COLUMN started_from jsonb;
