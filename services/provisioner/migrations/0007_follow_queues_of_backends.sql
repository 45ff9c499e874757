-- 0007_follow_queues_of_backends.sql: attempts that wait in a backend's queue, and the hosts that they run on
SET LOCAL lock_timeout = '4s';
ALTER TABLE attempt ADD COLUMN queued_at timestamptz;
ALTER TABLE node ADD COLUMN host text;
ALTER TABLE pool ADD COLUMN backend text NOT NULL DEFAULT 'local';
