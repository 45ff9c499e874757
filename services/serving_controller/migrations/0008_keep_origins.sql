-- 0008_keep_origins.sql: what rounds do with a slot belongs to the request that asked for it
SET LOCAL lock_timeout = '4s';
ALTER TABLE slot ADD COLUMN origin jsonb;
