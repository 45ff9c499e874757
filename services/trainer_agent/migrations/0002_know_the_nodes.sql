-- 0002_know_the_nodes.sql: a claim counts for an attempt that was scheduled, from a node that was given to it
SET LOCAL lock_timeout = '4s';
ALTER TABLE attempt ADD COLUMN nodes text[];
-- What the provisioner said of these was read before it was kept: their runners have reported.
UPDATE attempt
   SET nodes = (SELECT array_agg(node_id ORDER BY node_index) FROM runner
                 WHERE runner.job_id = attempt.job_id AND runner.number = attempt.number)
 WHERE state = 'training';

-- Claims that came before the facts by which they are judged. A claim opens no attempt.
CREATE TABLE kept_claim (
    id       bigserial   PRIMARY KEY,
    job_id   text        NOT NULL,
    number   int         NOT NULL,
    event_id text        NOT NULL UNIQUE,
    type     text        NOT NULL,
    payload  jsonb       NOT NULL,
    kept_at  timestamptz NOT NULL
);
CREATE INDEX kept_claim_attempt ON kept_claim (job_id, number);
CREATE INDEX kept_claim_age ON kept_claim (kept_at);
