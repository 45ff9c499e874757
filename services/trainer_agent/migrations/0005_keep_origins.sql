-- 0005_keep_origins.sql: what an attempt's runners report belongs to the request that it was scheduled for
SET LOCAL lock_timeout = '4s';
ALTER TABLE attempt ADD COLUMN origin jsonb;
