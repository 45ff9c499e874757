-- 0012_take_turns.sql: a tenant's thousand tasks must not stand before another's first
SET LOCAL lock_timeout = '4s';
ALTER TABLE task ADD COLUMN tenant text NOT NULL DEFAULT '';
UPDATE task SET tenant = coalesce(payload ->> 'tenant', payload -> 'artefact' ->> 'tenant', '');
CREATE INDEX task_queue ON task (kind, tenant, not_before) WHERE set_aside_at IS NULL;
CREATE INDEX task_leased ON task (kind, lease_expires_at) WHERE lease_expires_at IS NOT NULL;

-- When a task of the tenant was last begun.
CREATE TABLE turn (
    kind      text        NOT NULL,
    tenant    text        NOT NULL,
    served_at timestamptz NOT NULL,
    PRIMARY KEY (kind, tenant)
);
CREATE INDEX turn_age ON turn (served_at);
