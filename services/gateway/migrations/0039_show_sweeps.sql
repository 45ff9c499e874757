-- 0039_show_sweeps.sql: sweeps and their trials, as the tracker has decided them
SET LOCAL lock_timeout = '4s';
CREATE TABLE sweep (
    sweep_id        text        NOT NULL PRIMARY KEY,
    number          bigserial   NOT NULL,
    tenant          text        NOT NULL,
    name            text        NOT NULL DEFAULT '',
    dataset_id      text        NOT NULL DEFAULT '',
    spec            jsonb       NOT NULL DEFAULT '{}',
    state           text        NOT NULL DEFAULT 'running',
    best            int,
    best_valid_loss double precision,
    message         text        NOT NULL DEFAULT '',
    created_at      timestamptz NOT NULL DEFAULT now(),
    finished_at     timestamptz
);
CREATE UNIQUE INDEX sweep_of_tenant ON sweep (tenant, number);
CREATE INDEX sweep_running ON sweep (tenant) WHERE state = 'running';
CREATE INDEX sweep_age ON sweep (finished_at) WHERE finished_at IS NOT NULL;

CREATE TABLE trial (
    sweep_id     text NOT NULL REFERENCES sweep ON DELETE CASCADE,
    number       int  NOT NULL,
    tenant       text NOT NULL,
    job_id       text NOT NULL,
    parameters   jsonb NOT NULL DEFAULT '{}',
    state        text NOT NULL,
    valid_loss   double precision,
    duplicate_of int,
    message      text NOT NULL DEFAULT '',
    PRIMARY KEY (sweep_id, number)
);
CREATE INDEX trial_of_job ON trial (job_id);
