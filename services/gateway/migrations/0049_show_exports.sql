-- 0049_show_exports.sql: what is exported of models, which counts as stored bytes
SET LOCAL lock_timeout = '4s';
CREATE TABLE export (
    export_id       text        NOT NULL PRIMARY KEY,
    tenant          text        NOT NULL,
    model_id        text        NOT NULL,
    format          text        NOT NULL,
    quantization    text,
    state           text        NOT NULL,
    estimated_bytes bigint      NOT NULL DEFAULT 0,
    size_bytes      bigint      NOT NULL DEFAULT 0,
    files           jsonb       NOT NULL DEFAULT '[]',
    parity          jsonb,
    progress        jsonb,
    code            text        NOT NULL DEFAULT '',
    message         text        NOT NULL DEFAULT '',
    created_at      timestamptz NOT NULL DEFAULT now(),
    finished_at     timestamptz
);
CREATE INDEX export_of_model ON export (model_id, export_id);
CREATE INDEX export_of_tenant ON export (tenant) WHERE state IN ('running', 'ready');
