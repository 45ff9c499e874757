-- 0012_search_by_sweeps.sql: sweeps and their trials, which are jobs
SET LOCAL lock_timeout = '4s';
CREATE TABLE sweep (
    id           text        NOT NULL PRIMARY KEY,
    tenant       text        NOT NULL,
    dataset_id   text        NOT NULL,
    spec         jsonb       NOT NULL,
    state        text        NOT NULL,
    stop         text,
    submitted_at timestamptz NOT NULL,
    ended_at     timestamptz
);

CREATE INDEX sweep_limited ON sweep (id) WHERE state = 'running' AND spec ->> 'max_cost' IS NOT NULL;
CREATE INDEX sweep_over ON sweep (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE trial (
    sweep_id        text             NOT NULL REFERENCES sweep (id) ON DELETE CASCADE,
    number          int              NOT NULL,
    job_id          text             NOT NULL UNIQUE,
    parameters      jsonb            NOT NULL,
    config_hash     text             NOT NULL,
    state           text             NOT NULL,
    is_open         boolean          NOT NULL,
    num_steps       bigint,
    losses          jsonb            NOT NULL DEFAULT '[]',
    is_trained      boolean          NOT NULL DEFAULT false,
    best_valid_loss double precision,
    is_measured     boolean          NOT NULL DEFAULT false,
    final_loss      double precision,
    valid_loss      double precision,
    duplicate_of    int,
    message         text             NOT NULL DEFAULT '',
    artifact        jsonb,
    PRIMARY KEY (sweep_id, number)
) WITH (fillfactor = 70);
