-- 0014_keep_exports.sql: what is exported of a version, in each format once; 0 bytes and no files while it is under way
SET LOCAL lock_timeout = '4s';
CREATE TABLE export (
    export_id       text PRIMARY KEY,
    model_id        text NOT NULL REFERENCES model_version,
    tenant          text NOT NULL,
    format          text NOT NULL CHECK (format IN ('safetensors', 'gguf')),
    quantization    text CHECK (quantization IN ('f16', 'q8_0', 'q4_0')),
    state           text NOT NULL CHECK (state IN ('running', 'ready', 'failed', 'deleting')),
    estimated_bytes bigint NOT NULL,
    files           jsonb NOT NULL DEFAULT '[]',
    parity          jsonb,
    code            text NOT NULL DEFAULT '',
    message         text NOT NULL DEFAULT '',
    requested_at    timestamptz NOT NULL,
    CONSTRAINT gguf_names_its_type CHECK ((format = 'gguf') = (quantization IS NOT NULL)),
    CONSTRAINT what_is_ready_passed CHECK (state <> 'ready' OR (parity ->> 'passed')::boolean)
);

CREATE INDEX export_by_model ON export (model_id);
