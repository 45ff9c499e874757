-- 0001_create_scheduler.sql: jobs, their attempts, and what others have said of datasets, pools and slots
CREATE TABLE dataset (
    dataset_id text  PRIMARY KEY,
    state      text  NOT NULL CHECK (state IN ('accepted', 'refused', 'ready', 'rejected', 'deleted')),
    facts      jsonb NOT NULL
);

CREATE TABLE job (
    id           text        PRIMARY KEY,
    tenant       text        NOT NULL,
    state        text        NOT NULL CHECK (state IN (
        'validating', 'queued', 'provisioning', 'running', 'stopping', 'paused', 'evaluating',
        'succeeded', 'failed', 'cancelled')),
    revision     bigint      NOT NULL DEFAULT 0,
    spec         jsonb       NOT NULL,
    base_sha     text        NOT NULL,
    dataset_id   text        NOT NULL,
    submitted_at timestamptz NOT NULL,
    retry_of     text,
    plan         jsonb,
    config_hash  text,
    attempt      int         NOT NULL DEFAULT 0,
    verified     jsonb       NOT NULL,
    corrupt      jsonb       NOT NULL,
    queued_at    timestamptz,
    not_before   timestamptz,
    turned_away  jsonb       NOT NULL,
    requeues     jsonb       NOT NULL,
    preempted_at jsonb       NOT NULL,
    evaluation   jsonb       NOT NULL,
    CHECK ((plan IS NULL) = (config_hash IS NULL)),
    CHECK (state IN ('validating', 'paused', 'failed', 'cancelled') OR plan IS NOT NULL)
);
CREATE INDEX job_queued ON job (queued_at) WHERE state = 'queued';
CREATE INDEX job_dataset ON job (dataset_id);
CREATE INDEX job_config ON job (tenant, config_hash, submitted_at);
CREATE INDEX job_base ON job (base_sha) WHERE state IN ('provisioning', 'running', 'stopping', 'evaluating');

CREATE TABLE attempt (
    job_id           text        NOT NULL REFERENCES job,
    number           int         NOT NULL CHECK (number > 0),
    pool             text        NOT NULL,
    price_class      text        NOT NULL,
    nodes            int         NOT NULL CHECK (nodes > 0),
    devices_per_node int         NOT NULL CHECK (devices_per_node > 0),
    resume           jsonb,
    scheduled_at     timestamptz NOT NULL,
    start_deadline   timestamptz NOT NULL,
    facts            jsonb       NOT NULL,
    stop             jsonb,
    freed_at         timestamptz,
    PRIMARY KEY (job_id, number)
);
CREATE INDEX attempt_holding ON attempt (pool) WHERE freed_at IS NULL;

-- The capacity ledger is the pools and the attempts that hold nodes of them. Its one row is the lock.
CREATE TABLE ledger (singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton));
INSERT INTO ledger DEFAULT VALUES;

CREATE TABLE pool (
    name             text        PRIMARY KEY,
    price_class      text        NOT NULL,
    nodes            int         NOT NULL CHECK (nodes >= 0),
    devices_per_node int         NOT NULL CHECK (devices_per_node >= 0),
    price_per_hour   numeric     NOT NULL,
    changed_at       timestamptz NOT NULL
);

-- What serving has said last about each slot.
CREATE TABLE deployment (
    tenant     text    NOT NULL,
    slot       text    NOT NULL,
    generation bigint  NOT NULL,
    is_ready   boolean NOT NULL,
    message    text    NOT NULL,
    PRIMARY KEY (tenant, slot)
);

-- Facts that changed nothing, and why.
CREATE TABLE ignored (
    id       bigserial   PRIMARY KEY,
    job_id   text        NOT NULL,
    event_id text        NOT NULL,
    type     text        NOT NULL,
    reason   text        NOT NULL,
    at       timestamptz NOT NULL
);
CREATE INDEX ignored_job ON ignored (job_id, id);
