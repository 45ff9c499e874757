-- 0011_give_leases_nodes.sql: a lease in a pool that is not of this machine has a node there
SET LOCAL lock_timeout = '4s';
ALTER TABLE service_lease ADD COLUMN end_message     text NOT NULL DEFAULT '',
                          ADD COLUMN node_name       text,
                          ADD COLUMN node_state      text,
                          ADD COLUMN host            text,
                          ADD COLUMN node_address    text,
                          ADD COLUMN public_key      text,
                          ADD COLUMN notice_deadline timestamptz,
                          ADD COLUMN notice_source   text;
CREATE UNIQUE INDEX service_lease_node ON service_lease (node_name) WHERE node_name IS NOT NULL;
