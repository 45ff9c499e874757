-- 0005_know_archived_versions.sql: what was put away is not evaluated again
SET LOCAL lock_timeout = '4s';
ALTER TABLE model_version ADD COLUMN is_archived boolean NOT NULL DEFAULT false;
