-- Jobs follow their dataset and their base model in batches, by id: a batch reads no job of the one before.
CREATE INDEX job_of_base ON job (base_sha, id) WHERE state NOT IN ('succeeded', 'failed', 'cancelled');
DROP INDEX job_on_base;
CREATE INDEX job_of_dataset ON job (dataset_id, id) WHERE state IN ('validating', 'queued', 'paused');
DROP INDEX job_dataset;
