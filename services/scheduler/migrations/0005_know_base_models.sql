-- 0005_know_base_models.sql: what base models' names point to, and every open job on given files
SET LOCAL lock_timeout = '4s';
CREATE TABLE base_model (
    name     text PRIMARY KEY,
    base_sha text NOT NULL
);

CREATE INDEX job_on_base ON job (base_sha) WHERE state NOT IN ('succeeded', 'failed', 'cancelled');
DROP INDEX job_base;
