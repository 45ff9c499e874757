-- 0002_show_refusals.sql: a tenant reads its own refusals; nothing was ever written to the table before
DROP TABLE refusal;

CREATE TABLE refusal (
    id         bigserial PRIMARY KEY,
    tenant     text        NOT NULL,
    command_id text        NOT NULL,
    command    text        NOT NULL,
    subject_id text        NOT NULL,
    code       text        NOT NULL,
    message    text        NOT NULL,
    param      text,
    refused_at timestamptz NOT NULL
);
CREATE INDEX refusal_of_tenant ON refusal (tenant, id);
