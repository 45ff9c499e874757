-- 0013_know_nodes_of_leases.sql: where the devices of a lease are on a node of another backend's pool
SET LOCAL lock_timeout = '4s';
ALTER TABLE held_lease ADD COLUMN node jsonb;
