-- 0005_keep_best_checkpoints.sql: the best checkpoint of its run so far, as each one names it
SET LOCAL lock_timeout = '4s';
ALTER TABLE checkpoint ADD COLUMN best jsonb;
