-- 0001_create_kernel.sql: the tables that every service's schema has
CREATE TABLE outbox (
    id           bigserial PRIMARY KEY,
    event_id     text        NOT NULL UNIQUE,
    topic        text        NOT NULL,
    aggregate_id text        NOT NULL,
    sequence     bigint      NOT NULL,
    type         text        NOT NULL,
    headers      jsonb       NOT NULL,
    value        bytea       NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    published_at timestamptz,
    UNIQUE (topic, aggregate_id, sequence)
);
CREATE INDEX outbox_unpublished ON outbox (id) WHERE published_at IS NULL;
CREATE INDEX outbox_published ON outbox (published_at) WHERE published_at IS NOT NULL;

-- The last number given to each story. Its row lock makes writers of one aggregate take turns.
CREATE TABLE sequence (
    topic        text   NOT NULL,
    aggregate_id text   NOT NULL,
    last         bigint NOT NULL,
    PRIMARY KEY (topic, aggregate_id)
);

CREATE TABLE inbox (
    consumer       text        NOT NULL,
    topic          text        NOT NULL,
    event_id       text        NOT NULL,
    payload_sha256 bytea       NOT NULL,
    applied_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, topic, event_id)
);
CREATE INDEX inbox_applied ON inbox (applied_at);

-- How far each story has been read, over types that are ignored too.
CREATE TABLE position (
    topic        text   NOT NULL,
    aggregate_id text   NOT NULL,
    sequence     bigint NOT NULL,
    PRIMARY KEY (topic, aggregate_id)
);

-- Messages whose parent is not known yet.
CREATE TABLE waiting (
    id           bigserial PRIMARY KEY,
    parent       text        NOT NULL,
    topic        text        NOT NULL,
    partition    int         NOT NULL,
    "offset"     bigint      NOT NULL,
    aggregate_id text        NOT NULL,
    event_id     text        NOT NULL,
    key          bytea,
    headers      jsonb       NOT NULL,
    value        bytea,
    released     boolean     NOT NULL DEFAULT false,
    expires_at   timestamptz NOT NULL,
    UNIQUE (topic, event_id)
);
CREATE INDEX waiting_parent ON waiting (parent);
CREATE INDEX waiting_aggregate ON waiting (topic, aggregate_id, id);

CREATE TABLE parked (
    id           bigserial PRIMARY KEY,
    topic        text        NOT NULL,
    partition    int         NOT NULL,
    "offset"     bigint      NOT NULL,
    aggregate_id text        NOT NULL,
    event_id     text        NOT NULL,
    sequence     bigint,
    key          bytea,
    headers      jsonb       NOT NULL,
    value        bytea,
    reason       text        NOT NULL,
    detail       text        NOT NULL,
    blocks       boolean     NOT NULL,
    state        text        NOT NULL DEFAULT 'parked' CHECK (state IN ('parked', 'replayed', 'dropped')),
    parked_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    settled_at   timestamptz,
    UNIQUE (topic, partition, "offset")
);
CREATE INDEX parked_open ON parked (topic, aggregate_id, id) WHERE state = 'parked' AND blocks;

CREATE TABLE timer (
    id             bigserial PRIMARY KEY,
    type           text        NOT NULL,
    payload        jsonb       NOT NULL,
    fires_at       timestamptz NOT NULL,
    attempts       int         NOT NULL DEFAULT 0,
    traceparent    text        NOT NULL DEFAULT '',
    correlation_id text        NOT NULL DEFAULT ''
);
CREATE INDEX timer_due ON timer (fires_at);

CREATE TABLE task (
    kind             text        NOT NULL,
    key              text        NOT NULL,
    payload          jsonb       NOT NULL,
    attempts         int         NOT NULL DEFAULT 0,
    not_before       timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_owner      text,
    lease_epoch      bigint      NOT NULL DEFAULT 0,
    lease_expires_at timestamptz,
    last_error       text        NOT NULL DEFAULT '',
    traceparent      text        NOT NULL DEFAULT '',
    correlation_id   text        NOT NULL DEFAULT '',
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (kind, key)
);

CREATE TABLE lease (
    name       text PRIMARY KEY,
    owner      text        NOT NULL,
    epoch      bigint      NOT NULL,
    expires_at timestamptz NOT NULL
);
