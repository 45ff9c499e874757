-- 0009_index_ended_attempts.sql: how long attempts held their nodes lately
SET LOCAL lock_timeout = '4s';
CREATE INDEX attempt_freed ON attempt (freed_at DESC) INCLUDE (scheduled_at) WHERE freed_at IS NOT NULL;
