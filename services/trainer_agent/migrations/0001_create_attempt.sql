-- 0001_create_attempt.sql: attempts, the runners that reported for them, and claims that made no fact
CREATE TABLE attempt (
    job_id         text    NOT NULL,
    number         int     NOT NULL,
    tenant         text    NOT NULL,
    state          text    NOT NULL DEFAULT 'gathering',
    job_order      jsonb,
    stop_reason    text,
    stop_deadline  timestamptz,
    failure_class  text,
    nodes_released boolean NOT NULL DEFAULT false,
    last_step      bigint  NOT NULL DEFAULT 0,
    last_bundle    jsonb,
    revision       bigint  NOT NULL DEFAULT 0,
    PRIMARY KEY (job_id, number)
);
CREATE INDEX attempt_open ON attempt (job_id, number) WHERE state <> 'closed';

CREATE TABLE runner (
    job_id      text        NOT NULL,
    number      int         NOT NULL,
    node_index  int         NOT NULL,
    node_id     text        NOT NULL,
    host        text        NOT NULL,
    port        int         NOT NULL,
    report_id   text        NOT NULL,
    seen_at     timestamptz NOT NULL,
    step        bigint      NOT NULL DEFAULT 0,
    has_stopped boolean     NOT NULL DEFAULT false,
    PRIMARY KEY (job_id, number, node_index),
    FOREIGN KEY (job_id, number) REFERENCES attempt (job_id, number)
);

CREATE TABLE dropped_claim (
    id         bigserial   PRIMARY KEY,
    job_id     text        NOT NULL,
    number     int         NOT NULL,
    event_id   text        NOT NULL,
    type       text        NOT NULL,
    reason     text        NOT NULL,
    payload    jsonb       NOT NULL,
    dropped_at timestamptz NOT NULL
);
CREATE INDEX dropped_claim_attempt ON dropped_claim (job_id, number);
