-- 0031_show_validations.sql: what was measured on the validation file after a step, and the newest such loss of a job
SET LOCAL lock_timeout = '4s';
ALTER TABLE step ADD COLUMN validation jsonb;
ALTER TABLE job ADD COLUMN valid_loss double precision;
