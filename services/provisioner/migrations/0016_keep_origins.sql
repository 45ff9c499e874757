-- 0016_keep_origins.sql: what a look at its nodes makes of an attempt belongs to the request that it was scheduled for
SET LOCAL lock_timeout = '4s';
ALTER TABLE attempt ADD COLUMN origin jsonb;
