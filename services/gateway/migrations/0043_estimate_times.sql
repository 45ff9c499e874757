-- 0043_estimate_times.sql: how long attempts took, from which times and costs of later jobs are estimated
SET LOCAL lock_timeout = '4s';
CREATE TABLE attempt_time (
    job_id            text             NOT NULL,
    attempt           int              NOT NULL,
    pool              text             NOT NULL,
    base_sha          text             NOT NULL,
    method            text             NOT NULL,
    num_devices       int              NOT NULL,
    flops             double precision NOT NULL,
    training_seconds  double precision NOT NULL,
    other_seconds     double precision NOT NULL,
    estimated_seconds double precision,
    ended_at          timestamptz      NOT NULL,
    PRIMARY KEY (job_id, attempt)
);
CREATE INDEX attempt_time_of_pool ON attempt_time (pool, ended_at DESC);
CREATE INDEX attempt_time_of_base ON attempt_time (pool, base_sha, ended_at DESC);
ALTER TABLE job ADD COLUMN estimated_times jsonb NOT NULL DEFAULT '[]';
CREATE INDEX dataset_of_files ON dataset (tenant, files);
