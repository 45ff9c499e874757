-- 0004_keep_bundles_that_jobs_start_from.sql: jobs that are not over, and the checkpoints of others that they start from
CREATE TABLE bundle_use (
    job_id     text NOT NULL,
    trained_by text NOT NULL,
    attempt    int  NOT NULL,
    step       int  NOT NULL,
    PRIMARY KEY (job_id, trained_by, attempt, step)
);
CREATE INDEX bundle_use_of_job ON bundle_use (trained_by);
