CREATE INDEX model_version_by_job ON model_version (job_id);
