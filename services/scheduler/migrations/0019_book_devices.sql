-- 0019_book_devices.sql: attempts hold devices of machines. Those from before hold machines whole, from number 0 on; the
-- provisioner numbers the same attempts in the same order
SET LOCAL lock_timeout = '4s';
ALTER TABLE pool ADD COLUMN accelerator text, ADD COLUMN drained jsonb NOT NULL DEFAULT '[]',
                 ADD COLUMN max_devices_per_job int, ADD COLUMN tenants jsonb NOT NULL DEFAULT '[]',
                 ADD COLUMN is_removed boolean NOT NULL DEFAULT false;
ALTER TABLE attempt ADD COLUMN machines jsonb NOT NULL DEFAULT '[]', ADD COLUMN taken_per_node int NOT NULL DEFAULT 1;

UPDATE attempt SET machines = numbered.machines, taken_per_node = numbered.taken_per_node
  FROM (SELECT job_id, number, pool.devices_per_node AS taken_per_node,
               (SELECT jsonb_agg(machine)
                  FROM generate_series(placed.upto - placed.nodes, placed.upto - 1) AS machine) AS machines
          FROM (SELECT job_id, number, pool, nodes,
                       sum(nodes) OVER (PARTITION BY pool ORDER BY job_id COLLATE "C", number) AS upto
                  FROM attempt WHERE freed_at IS NULL) AS placed
          JOIN pool ON pool.name = placed.pool) AS numbered
 WHERE (attempt.job_id, attempt.number) = (numbered.job_id, numbered.number);
