-- 0018_train_in_stages.sql: datasets and plans of a job's later stages, and which stage it is in
SET LOCAL lock_timeout = '4s';
ALTER TABLE job ADD COLUMN later_dataset_ids text[] NOT NULL DEFAULT '{}';
ALTER TABLE job ADD COLUMN stage jsonb;
ALTER TABLE job ADD COLUMN stage_plans jsonb NOT NULL DEFAULT '[]';
-- A dataset that is ready or deleted has the jobs that wait for it followed.
CREATE INDEX job_of_later_datasets ON job USING gin (later_dataset_ids)
 WHERE state IN ('validating', 'queued', 'paused');

-- A job waits until all of its datasets are there.
CREATE OR REPLACE VIEW operator_unapplied_fact AS
SELECT job.id AS job_id, format('dataset %s is %s', dataset.dataset_id, dataset.state) AS fact
  FROM job JOIN dataset USING (dataset_id)
 WHERE job.state = 'validating' AND dataset.state <> 'accepted'
   AND NOT EXISTS (
       SELECT 1 FROM unnest(job.later_dataset_ids) AS later
        WHERE NOT EXISTS (SELECT 1 FROM dataset AS own WHERE own.dataset_id = later AND own.state <> 'accepted'))
 UNION ALL
SELECT job.id, format('serving has answered for slot %s, generation %s', slot, generation)
  FROM job JOIN deployment USING (tenant)
 WHERE job.state = 'evaluating'
   AND (evaluation -> 'passed')::boolean AND (evaluation -> 'promoted')::boolean
   AND slot = evaluation -> 'approval' ->> 'slot'
   AND generation >= (evaluation -> 'approval' -> 'generation')::bigint;
