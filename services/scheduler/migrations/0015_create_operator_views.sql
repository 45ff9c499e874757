-- 0015_create_operator_views.sql: what operators' tools select from; they name no table of this schema
CREATE VIEW operator_job AS
SELECT id AS job_id, tenant, state, attempt, config_hash FROM job;

-- Attempts for which the ledger counts nodes.
CREATE VIEW operator_booked_attempt AS
SELECT job_id, number AS attempt FROM attempt WHERE freed_at IS NULL;

-- Jobs that wait for what the tables have already: both are written in one transaction, so there should be none.
CREATE VIEW operator_unapplied_fact AS
SELECT job.id AS job_id, format('dataset %s is %s', dataset.dataset_id, dataset.state) AS fact
  FROM job JOIN dataset USING (dataset_id)
 WHERE job.state = 'validating' AND dataset.state <> 'accepted'
 UNION ALL
SELECT job.id, format('serving has answered for slot %s, generation %s', slot, generation)
  FROM job JOIN deployment USING (tenant)
 WHERE job.state = 'evaluating'
   AND (evaluation -> 'passed')::boolean AND (evaluation -> 'promoted')::boolean
   AND slot = evaluation -> 'approval' ->> 'slot'
   AND generation >= (evaluation -> 'approval' -> 'generation')::bigint;
