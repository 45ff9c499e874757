-- 0013_keep_failures_under_leases.sql: machines that failed under a service's node, apart from those under attempts,
-- which provisioners of the release before announce
SET LOCAL lock_timeout = '4s';
CREATE TABLE lease_failure (
    node_id          text        PRIMARY KEY,
    pool             text        NOT NULL,
    machine          text        NOT NULL,
    devices          jsonb       NOT NULL,
    lease_id         text        NOT NULL,
    holder           text        NOT NULL,
    purpose          text        NOT NULL,
    failed_at        timestamptz NOT NULL,
    message          text        NOT NULL,
    has_lost_machine boolean     NOT NULL,
    is_past          boolean     NOT NULL DEFAULT false -- of before its machine was uncordoned
);
CREATE INDEX lease_failure_of_machine ON lease_failure (pool, machine, failed_at);
CREATE INDEX lease_failure_of_pool ON lease_failure (pool, failed_at);
CREATE INDEX lease_failure_failed_at ON lease_failure (failed_at);

CREATE OR REPLACE VIEW operator_machine_failure AS
SELECT failed_at, pool, machine, devices, job_id, number AS attempt, node_id, message, kind,
       NULL::text AS lease_id, NULL::text AS holder, NULL::text AS purpose FROM machine_failure
 UNION ALL
SELECT failed_at, pool, machine, devices, NULL, NULL, node_id, message, 'node_lost', lease_id, holder, purpose
  FROM lease_failure;

-- Those of a day count, since the machine was last uncordoned: FAILURES_WITHIN of the provisioner. What a service's
-- program does wrong it does everywhere: all its ends are of one, and each lost machine under it is of one of its own.
CREATE OR REPLACE VIEW operator_machine AS
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
       failed.failures, coalesce(source, '') AS cordoned_by, coalesce(reason, '') AS reason,
       cordoned_at, failed.counted_failures, failed.counted_jobs
  FROM used FULL JOIN cordon ON (cordon.pool, cordon.machine) = (used.pool, used.name)
 CROSS JOIN LATERAL (
    SELECT count(*) AS failures,
           count(*) FILTER (WHERE NOT is_past AND failed_at >= now() - interval '24 hours') AS counted_failures,
           count(DISTINCT subject) FILTER (WHERE NOT is_past AND failed_at >= now() - interval '24 hours') AS counted_jobs
      FROM (SELECT pool, machine, failed_at, is_past, job_id AS subject FROM machine_failure
             UNION ALL
            SELECT pool, machine, failed_at, is_past, CASE WHEN has_lost_machine THEN lease_id ELSE holder END
              FROM lease_failure) AS failure
     WHERE (failure.pool, failure.machine)
         = (coalesce(used.pool, cordon.pool), coalesce(used.name, cordon.machine))) AS failed;
