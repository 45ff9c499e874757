-- 0006_lease_devices.sql: nodes have devices of machines, each once; numbers continue from machine to machine. Nodes from
-- before have machines whole, from number 0 on; the scheduler numbers the same attempts in the same order
SET LOCAL lock_timeout = '4s';
ALTER TABLE pool RENAME COLUMN price_per_hour TO price_per_device_hour;
ALTER TABLE pool ADD COLUMN drained jsonb NOT NULL DEFAULT '[]', ADD COLUMN accelerator text,
                 ADD COLUMN first_device int NOT NULL DEFAULT 0, ADD COLUMN max_devices_per_job int,
                 ADD COLUMN tenants jsonb NOT NULL DEFAULT '[]', ADD COLUMN is_removed boolean NOT NULL DEFAULT false;
UPDATE pool SET price_per_device_hour = price_per_device_hour / greatest(devices_per_node, 1);
ALTER TABLE attempt ADD COLUMN device text;
ALTER TABLE node ADD COLUMN machine int, ADD COLUMN devices jsonb NOT NULL DEFAULT '[]';

CREATE TABLE device_lease (
    pool    text NOT NULL REFERENCES pool (name),
    machine int  NOT NULL,
    device  int  NOT NULL,
    node_id text NOT NULL REFERENCES node (node_id),
    PRIMARY KEY (pool, device)
);
CREATE INDEX device_lease_node ON device_lease (node_id);

UPDATE node SET machine = placed.machine
  FROM (SELECT node_id, row_number() OVER (
                   PARTITION BY pool ORDER BY job_id COLLATE "C", number, index) - 1 AS machine
          FROM node WHERE released_at IS NULL) AS placed
 WHERE node.node_id = placed.node_id;
INSERT INTO device_lease (pool, machine, device, node_id)
SELECT pool.name, node.machine, node.machine * pool.devices_per_node + place, node.node_id
  FROM node JOIN pool ON pool.name = node.pool CROSS JOIN generate_series(0, pool.devices_per_node - 1) AS place
 WHERE node.released_at IS NULL;
UPDATE node SET devices = held.devices
  FROM (SELECT node_id, jsonb_agg(device ORDER BY device) AS devices FROM device_lease GROUP BY node_id) AS held
 WHERE node.node_id = held.node_id;

-- A drained machine is none of the pool's nodes any more.
CREATE OR REPLACE VIEW operator_node AS
SELECT pool, allocated_at, machine, coalesce(pool.drained @> to_jsonb(machine), false) AS is_drained
  FROM node LEFT JOIN pool ON pool.name = node.pool
 WHERE released_at IS NULL;
