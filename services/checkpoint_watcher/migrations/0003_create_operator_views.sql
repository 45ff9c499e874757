-- 0003_create_operator_views.sql: what operators' tools select from; they name no table of this schema
CREATE VIEW operator_checkpoint AS
SELECT job_id, attempt, step, manifest_sha256, state FROM checkpoint;

-- The newest attempt of each job.
CREATE VIEW operator_newest_attempt AS
SELECT job_id, attempt, is_open FROM attempt;

-- Attempts whose leftovers will be deleted.
CREATE VIEW operator_planned_sweep AS
SELECT payload ->> 'job_id' AS job_id, (payload ->> 'attempt')::int AS attempt FROM timer WHERE type = 'SweepDue'
 UNION
SELECT payload ->> 'job_id', (payload ->> 'attempt')::int FROM task WHERE kind = 'SweepAttempt';

-- Jobs whose bundles will be deleted.
CREATE VIEW operator_planned_expiry AS
SELECT payload ->> 'job_id' AS job_id FROM timer WHERE type = 'JobDue'
 UNION
SELECT payload ->> 'job_id' FROM task WHERE kind = 'ExpireJob';
