-- 0010_let_replicas_leave.sql: a replica that is one too many gets no more requests before it ends
SET LOCAL lock_timeout = '4s';
ALTER TABLE replica DROP CONSTRAINT replica_phase_check;
ALTER TABLE replica ADD CONSTRAINT replica_phase_check CHECK (phase IN ('starting', 'ready', 'leaving', 'lost'));
