-- 0008_keep_records_of_machines.sql: nodes that failed for a reason of their machine, and machines that take no work
SET LOCAL lock_timeout = '4s';
ALTER TABLE pool ADD COLUMN cordon_after_failures int NOT NULL DEFAULT 0;

CREATE TABLE machine_failure (
    node_id   text        PRIMARY KEY,
    pool      text        NOT NULL,
    machine   text        NOT NULL,
    devices   jsonb       NOT NULL,
    job_id    text        NOT NULL,
    number    int         NOT NULL,
    failed_at timestamptz NOT NULL,
    message   text        NOT NULL,
    is_past   boolean     NOT NULL DEFAULT false -- of before its machine was uncordoned
);
CREATE INDEX machine_failure_of_machine ON machine_failure (pool, machine, failed_at);
CREATE INDEX machine_failure_of_attempt ON machine_failure (job_id, number);
CREATE INDEX machine_failure_failed_at ON machine_failure (failed_at);

CREATE TABLE cordon (
    pool        text        NOT NULL REFERENCES pool (name),
    machine     text        NOT NULL,
    source      text        NOT NULL,
    reason      text        NOT NULL,
    cordoned_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pool, machine)
);

CREATE VIEW operator_machine_failure AS
SELECT failed_at, pool, machine, devices, job_id, number AS attempt, node_id, message FROM machine_failure;

-- Machines that nodes are on, and those that are cordoned, by the names that people know them by.
CREATE VIEW operator_machine AS
WITH used AS (
    SELECT node.pool, CASE WHEN pool.backend = 'local' THEN node.machine::text ELSE coalesce(host, '') END AS name,
           sum(jsonb_array_length(devices)) AS num_devices, array_agg(DISTINCT job_id ORDER BY job_id) AS job_ids,
           bool_or(coalesce(pool.drained @> to_jsonb(node.machine), false)) AS is_drained
      FROM node LEFT JOIN pool ON pool.name = node.pool
     WHERE released_at IS NULL
     GROUP BY 1, 2)
SELECT coalesce(used.pool, cordon.pool) AS pool, coalesce(used.name, cordon.machine) AS machine,
       CASE WHEN source IS NOT NULL THEN 'cordoned' WHEN is_drained THEN 'drained' ELSE 'in use' END AS state,
       coalesce(num_devices, 0) AS devices_in_use, coalesce(job_ids, '{}') AS jobs,
       (SELECT count(*) FROM machine_failure AS failure
         WHERE (failure.pool, failure.machine)
             = (coalesce(used.pool, cordon.pool), coalesce(used.name, cordon.machine))) AS failures,
       coalesce(source, '') AS cordoned_by, coalesce(reason, '') AS reason
  FROM used FULL JOIN cordon ON (cordon.pool, cordon.machine) = (used.pool, used.name);

-- A machine that takes no work is none of the pool's nodes.
CREATE OR REPLACE VIEW operator_node AS
SELECT pool, allocated_at, machine,
       coalesce(pool.drained @> to_jsonb(machine), false)
           OR EXISTS (SELECT FROM cordon WHERE cordon.pool = node.pool AND cordon.machine = node.machine::text
                                           AND pool.backend = 'local') AS is_drained
  FROM node LEFT JOIN pool ON pool.name = node.pool
 WHERE released_at IS NULL;
