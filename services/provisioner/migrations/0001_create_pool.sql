-- 0001_create_pool.sql: pools, the attempts that hold nodes of them, and those nodes
CREATE TABLE pool (
    name             text    PRIMARY KEY,
    price_class      text    NOT NULL,
    nodes            int     NOT NULL CHECK (nodes >= 0),
    devices_per_node int     NOT NULL,
    price_per_hour   numeric NOT NULL,
    file_nodes       int     NOT NULL
);

CREATE TABLE attempt (
    job_id           text             NOT NULL,
    number           int              NOT NULL,
    name             text             NOT NULL UNIQUE,
    tenant           text             NOT NULL,
    state            text             NOT NULL,
    pool             text             NOT NULL,
    price_class      text             NOT NULL,
    devices_per_node int              NOT NULL,
    grace_seconds    double precision NOT NULL,
    start_deadline   timestamptz,
    stop_deadline    timestamptz,
    has_started      boolean          NOT NULL DEFAULT false,
    was_created      boolean          NOT NULL DEFAULT false,
    failure_code     text             NOT NULL DEFAULT '',
    failure_message  text             NOT NULL DEFAULT '',
    revision         bigint           NOT NULL DEFAULT 0,
    PRIMARY KEY (job_id, number)
);

CREATE TABLE node (
    node_id         text        PRIMARY KEY,
    job_id          text        NOT NULL,
    number          int         NOT NULL,
    index           int         NOT NULL,
    pool            text        NOT NULL REFERENCES pool (name),
    price_per_hour  numeric     NOT NULL,
    allocated_at    timestamptz NOT NULL,
    released_at     timestamptz,
    has_ended       boolean     NOT NULL DEFAULT false,
    exit_code       int,
    notice_deadline timestamptz,
    FOREIGN KEY (job_id, number) REFERENCES attempt (job_id, number),
    UNIQUE (job_id, number, index)
);
CREATE INDEX node_held ON node (pool) WHERE released_at IS NULL;
