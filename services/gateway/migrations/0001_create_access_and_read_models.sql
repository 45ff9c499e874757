-- 0001_create_access_and_read_models.sql: who may call, what was uploaded, and what events have told
CREATE TABLE tenant (
    name       text PRIMARY KEY,
    tier       text        NOT NULL DEFAULT 'standard',
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE api_key (
    id         text PRIMARY KEY,
    tenant     text        NOT NULL REFERENCES tenant (name),
    sha256     text        NOT NULL UNIQUE,
    prefix     text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    revoked_at timestamptz
);

CREATE TABLE file (
    file_id    text PRIMARY KEY,
    tenant     text        NOT NULL,
    sha256     text        NOT NULL,
    size_bytes bigint      NOT NULL,
    filename   text        NOT NULL,
    purpose    text        NOT NULL,
    format     text,
    created_at timestamptz NOT NULL,
    deleted_at timestamptz
);
CREATE INDEX file_of_tenant ON file (tenant, created_at DESC);

CREATE TABLE idempotency (
    tenant      text        NOT NULL,
    key         text        NOT NULL,
    body_sha256 text        NOT NULL,
    response    jsonb,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant, key)
);

CREATE TABLE job (
    job_id           text PRIMARY KEY,
    tenant           text        NOT NULL,
    phase            text        NOT NULL DEFAULT 'validating',
    spec             jsonb       NOT NULL DEFAULT '{}',
    dataset_id       text,
    dataset_version  text,
    config_hash      text,
    duplicate_of     text,
    retry_of         text,
    attempt          int         NOT NULL DEFAULT 0,
    num_steps        int,
    last_step        int         NOT NULL DEFAULT 0,
    waiting_for      text        NOT NULL DEFAULT '',
    fine_tuned_model text,
    model_id         text,
    is_deployed      boolean     NOT NULL DEFAULT false,
    error            jsonb,
    certificate      jsonb,
    cost             numeric(18, 6) NOT NULL DEFAULT 0,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at      timestamptz
);
CREATE INDEX job_of_tenant ON job (tenant, created_at DESC, job_id);

CREATE TABLE job_event (
    id         bigserial PRIMARY KEY,
    job_id     text        NOT NULL,
    tenant     text        NOT NULL,
    event_id   text        NOT NULL,
    type       text        NOT NULL,
    level      text        NOT NULL,
    message    text        NOT NULL,
    data       jsonb       NOT NULL,
    created_at timestamptz NOT NULL
);
CREATE INDEX job_event_of_job ON job_event (job_id, id);

CREATE TABLE checkpoint (
    job_id          text        NOT NULL,
    attempt         int         NOT NULL,
    step            int         NOT NULL,
    manifest_sha256 text        NOT NULL,
    tenant          text        NOT NULL,
    kind            text        NOT NULL DEFAULT '',
    metrics         jsonb       NOT NULL DEFAULT '{}',
    state           text        NOT NULL,
    created_at      timestamptz NOT NULL,
    PRIMARY KEY (job_id, attempt, step, manifest_sha256)
);

CREATE TABLE step (
    job_id  text  NOT NULL,
    step    int   NOT NULL,
    attempt int   NOT NULL,
    metrics jsonb NOT NULL,
    PRIMARY KEY (job_id, step)
);

CREATE TABLE dataset (
    dataset_id      text PRIMARY KEY,
    tenant          text        NOT NULL,
    state           text        NOT NULL,
    dataset_version text,
    detail          jsonb       NOT NULL DEFAULT '{}',
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX dataset_of_version ON dataset (dataset_version);

CREATE TABLE base_model (
    name          text PRIMARY KEY,
    base_sha      text        NOT NULL,
    detail        jsonb       NOT NULL,
    registered_at timestamptz NOT NULL
);

CREATE TABLE model (
    model_id        text PRIMARY KEY,
    tenant          text        NOT NULL,
    full_name       text        NOT NULL,
    digest          text        NOT NULL,
    job_id          text        NOT NULL,
    base_model      text        NOT NULL,
    base_sha        text        NOT NULL,
    dataset_version text        NOT NULL,
    stage           text        NOT NULL,
    eval_id         text,
    is_stale        boolean     NOT NULL DEFAULT false,
    detail          jsonb       NOT NULL,
    created_at      timestamptz NOT NULL
);
CREATE INDEX model_of_tenant ON model (tenant, created_at DESC);

CREATE TABLE evaluation (
    eval_id    text PRIMARY KEY,
    tenant     text        NOT NULL,
    job_id     text        NOT NULL,
    model_id   text        NOT NULL,
    outcome    text        NOT NULL,
    reason     text        NOT NULL DEFAULT '',
    stages     jsonb       NOT NULL DEFAULT '[]',
    created_at timestamptz NOT NULL
);

CREATE TABLE replica (
    replica_id  text PRIMARY KEY,
    incarnation text    NOT NULL,
    pool        text    NOT NULL,
    base_model  text    NOT NULL,
    base_sha    text    NOT NULL,
    served_base text    NOT NULL,
    url         text    NOT NULL,
    is_ready    boolean NOT NULL
);

CREATE TABLE route (
    tenant      text   NOT NULL,
    slot        text   NOT NULL,
    generation  bigint NOT NULL,
    model_id    text   NOT NULL,
    digest      text   NOT NULL,
    state       text   NOT NULL,
    reason      text   NOT NULL DEFAULT '',
    served_name text   NOT NULL DEFAULT '',
    replicas    jsonb  NOT NULL DEFAULT '[]',
    updated_at  timestamptz NOT NULL,
    PRIMARY KEY (tenant, slot)
);

CREATE TABLE pool (
    name   text PRIMARY KEY,
    detail jsonb NOT NULL
);

CREATE TABLE refusal (
    command_id text PRIMARY KEY,
    command    text        NOT NULL,
    subject_id text        NOT NULL,
    tenant     text,
    code       text        NOT NULL,
    message    text        NOT NULL,
    param      text,
    refused_at timestamptz NOT NULL
);

-- Commands that this gateway sent and that somebody may wait for.
CREATE TABLE outcome (
    causation_id text PRIMARY KEY,
    event_type   text  NOT NULL,
    payload      jsonb NOT NULL
);
