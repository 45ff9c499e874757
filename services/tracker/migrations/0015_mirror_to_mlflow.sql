-- 0015_mirror_to_mlflow.sql: what the runs of jobs and sweeps in MLflow have, and what waits to be logged there
SET LOCAL lock_timeout = '4s';
CREATE TABLE mirrored_run (
    subject_id    text        NOT NULL PRIMARY KEY,
    tenant        text        NOT NULL,
    parent_id     text,
    run_id        text,
    last_step     bigint      NOT NULL DEFAULT -1,
    parameters    jsonb       NOT NULL DEFAULT '[]',
    due_at        timestamptz,
    waiting_since timestamptz,
    failures      int         NOT NULL DEFAULT 0,
    problem       text        NOT NULL DEFAULT '',
    changed_at    timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 70);
CREATE INDEX mirrored_run_changed ON mirrored_run (changed_at);
CREATE INDEX mirrored_run_due ON mirrored_run (due_at, waiting_since) WHERE due_at IS NOT NULL;

CREATE TABLE mirror_entry (
    number     bigserial   NOT NULL PRIMARY KEY,
    subject_id text        NOT NULL REFERENCES mirrored_run ON DELETE CASCADE,
    entry      jsonb       NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX mirror_entry_of_run ON mirror_entry (subject_id, number);

-- Metrics of weights, of which two messages speak: each is logged once.
CREATE TABLE mirrored_point (
    subject_id text   NOT NULL REFERENCES mirrored_run ON DELETE CASCADE,
    name       text   NOT NULL,
    step       bigint NOT NULL,
    PRIMARY KEY (subject_id, name, step)
);
