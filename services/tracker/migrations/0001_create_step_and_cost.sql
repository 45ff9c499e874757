-- 0001_create_step_and_cost.sql: metrics of every step, and the ledger of node-seconds
CREATE TABLE step (
    job_id            text             NOT NULL,
    step              int              NOT NULL,
    attempt           int              NOT NULL,
    tenant            text             NOT NULL,
    time              timestamptz      NOT NULL,
    loss              double precision NOT NULL,
    learning_rate     double precision NOT NULL,
    grad_norm         double precision NOT NULL,
    num_tokens        bigint           NOT NULL,
    tokens_per_second double precision NOT NULL,
    memory_bytes      bigint           NOT NULL,
    epoch             double precision NOT NULL,
    mfu               double precision,
    PRIMARY KEY (job_id, step)
);

CREATE TABLE cost (
    job_id       text             NOT NULL,
    attempt      int              NOT NULL,
    tenant       text             NOT NULL,
    pool         text             NOT NULL DEFAULT '',
    price_class  text             NOT NULL DEFAULT 'on-demand',
    began_at     timestamptz      NOT NULL,
    until        timestamptz,
    node_seconds double precision NOT NULL DEFAULT 0,
    cost         numeric(18, 6)   NOT NULL DEFAULT 0,
    PRIMARY KEY (job_id, attempt)
);
