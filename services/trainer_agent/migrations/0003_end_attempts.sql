SET LOCAL lock_timeout = '4s';
ALTER TABLE attempt ADD COLUMN closed_at timestamptz;
UPDATE attempt SET closed_at = now() WHERE state = 'closed';
CREATE INDEX attempt_closed ON attempt (closed_at) WHERE closed_at IS NOT NULL;
CREATE INDEX dropped_claim_age ON dropped_claim (dropped_at);
