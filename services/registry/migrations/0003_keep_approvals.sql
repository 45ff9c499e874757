-- 0003_keep_approvals.sql: who approved a version for production, why, and whether without a holdout
SET LOCAL lock_timeout = '4s';
ALTER TABLE model_version ADD COLUMN approval jsonb;
