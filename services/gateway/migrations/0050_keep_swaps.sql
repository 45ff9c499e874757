-- 0050_keep_swaps.sql: what became of each generation of a slot, and how long it took
SET LOCAL lock_timeout = '4s';
CREATE TABLE slot_generation (
    tenant          text        NOT NULL,
    slot            text        NOT NULL,
    generation      bigint      NOT NULL,
    model_id        text        NOT NULL DEFAULT '',
    digest          text        NOT NULL DEFAULT '',
    approved_at     timestamptz,
    ready_at        timestamptz,
    failed_at       timestamptz,
    withdrawn_at    timestamptz,
    swap            jsonb,
    failed_step     text,
    reason          text        NOT NULL DEFAULT '',
    previous_digest text,
    changed_at      timestamptz NOT NULL,
    PRIMARY KEY (tenant, slot, generation)
);

CREATE INDEX slot_generation_age ON slot_generation (changed_at);
