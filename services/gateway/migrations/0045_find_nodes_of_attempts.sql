-- 0045_find_nodes_of_attempts.sql: the nodes of an attempt, whose public keys prove its steps
SET LOCAL lock_timeout = '4s';
CREATE INDEX job_event_nodes ON job_event (job_id) WHERE type = 'NodesProvisioned';
