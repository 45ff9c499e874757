-- 0002_charge_by_ending.sql: whether the tenant pays for an attempt follows from how it ended
ALTER TABLE cost ADD COLUMN is_ended boolean NOT NULL DEFAULT false;
ALTER TABLE cost ADD COLUMN failure_class text;
ALTER TABLE cost ADD COLUMN is_charged boolean NOT NULL DEFAULT true;
-- The job's fact may come before the provisioner's.
ALTER TABLE cost ALTER COLUMN began_at DROP NOT NULL;
-- What was released before was told of already, and charged.
UPDATE cost SET is_ended = true WHERE until IS NOT NULL;
