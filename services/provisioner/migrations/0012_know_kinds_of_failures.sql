-- 0012_know_kinds_of_failures.sql: what failed, what counts for a cordon, and since when a machine is cordoned
SET LOCAL lock_timeout = '4s';
ALTER TABLE machine_failure ADD COLUMN kind text;
CREATE INDEX machine_failure_of_pool ON machine_failure (pool, failed_at);

CREATE OR REPLACE VIEW operator_machine_failure AS
SELECT failed_at, pool, machine, devices, job_id, number AS attempt, node_id, message, kind FROM machine_failure;

-- Those of a day count, since the machine was last uncordoned: FAILURES_WITHIN of the provisioner.
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
           count(DISTINCT job_id) FILTER (WHERE NOT is_past AND failed_at >= now() - interval '24 hours') AS counted_jobs
      FROM machine_failure AS failure
     WHERE (failure.pool, failure.machine)
         = (coalesce(used.pool, cordon.pool), coalesce(used.name, cordon.machine))) AS failed;
