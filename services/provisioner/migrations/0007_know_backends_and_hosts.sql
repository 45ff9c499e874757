-- 0007_know_backends_and_hosts.sql: the cluster backend of each pool, and the host of each node
SET LOCAL lock_timeout = '4s';
ALTER TABLE node ADD COLUMN host text;
ALTER TABLE pool ADD COLUMN backend text NOT NULL DEFAULT 'local';
