SET LOCAL lock_timeout = '4s';

-- What reading a job asked of its steps, so that they may go.
ALTER TABLE job ADD COLUMN last_recorded int NOT NULL DEFAULT 0, ADD COLUMN trained_tokens bigint;
UPDATE job SET last_recorded = counted.last_step, trained_tokens = counted.tokens
  FROM (SELECT job_id, max(step) AS last_step, sum((metrics ->> 'num_tokens')::bigint)::bigint AS tokens
          FROM step GROUP BY job_id) AS counted
 WHERE counted.job_id = job.job_id;

-- Ended jobs whose steps, events and checkpoints are still here: what is to be deleted is found without reading the rest.
CREATE TABLE ended_job (
    job_id   text        PRIMARY KEY,
    ended_at timestamptz NOT NULL
);
CREATE INDEX ended_job_age ON ended_job (ended_at);
INSERT INTO ended_job SELECT job_id, finished_at FROM job WHERE finished_at IS NOT NULL;

ALTER TABLE outcome ADD COLUMN saved_at timestamptz NOT NULL DEFAULT now();
CREATE INDEX outcome_age ON outcome (saved_at);
CREATE INDEX refusal_age ON refusal (refused_at);
CREATE INDEX idempotency_age ON idempotency (created_at);
