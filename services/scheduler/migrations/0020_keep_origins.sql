-- 0020_keep_origins.sql: what becomes of a job while something else is handled belongs to its own request
SET LOCAL lock_timeout = '4s';
ALTER TABLE job ADD COLUMN origin jsonb;
