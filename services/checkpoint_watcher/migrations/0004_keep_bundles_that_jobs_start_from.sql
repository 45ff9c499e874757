-- 0004_keep_bundles_that_jobs_start_from.sql: jobs that are not over, and the checkpoint of another that each starts from
CREATE TABLE bundle_use (
    job_id     text PRIMARY KEY,
    trained_by text NOT NULL,
    attempt    int  NOT NULL,
    step       int  NOT NULL
);
CREATE INDEX bundle_use_of_job ON bundle_use (trained_by);
