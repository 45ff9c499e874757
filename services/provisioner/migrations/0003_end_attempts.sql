SET LOCAL lock_timeout = '4s';
ALTER TABLE attempt ADD COLUMN gone_at timestamptz;
UPDATE attempt SET gone_at = now() WHERE state IN ('refused', 'released');
CREATE INDEX attempt_gone ON attempt (gone_at) WHERE gone_at IS NOT NULL;
