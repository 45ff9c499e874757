-- 0005_know_what_is_used.sql: when a slot had its last request, as far as gateways have told
CREATE TABLE slot_use (
    tenant  text        NOT NULL,
    slot    text        NOT NULL,
    used_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, slot)
);
