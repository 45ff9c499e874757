-- 0016_prove_steps.sql: the public key of the node that reports the steps of an attempt
SET LOCAL lock_timeout = '4s';
ALTER TABLE cost ADD COLUMN public_key text;
