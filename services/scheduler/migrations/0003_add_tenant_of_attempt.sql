-- What is held is counted at each decision, without a join whose plan depends on how young the statistics are.
ALTER TABLE attempt ADD COLUMN tenant text NOT NULL DEFAULT '';
UPDATE attempt SET tenant = job.tenant FROM job WHERE job.id = attempt.job_id;
CREATE INDEX attempt_held ON attempt (pool, tenant) INCLUDE (nodes) WHERE freed_at IS NULL;
DROP INDEX attempt_holding;
