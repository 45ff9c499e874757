-- 0008_prune_ignored.sql: what changed nothing is kept for a time
SET LOCAL lock_timeout = '4s';
CREATE INDEX ignored_at ON ignored (at);
