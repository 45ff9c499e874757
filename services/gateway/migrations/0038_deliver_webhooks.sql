-- 0038_deliver_webhooks.sql: endpoints of tenants, what is delivered to them and in which order
SET LOCAL lock_timeout = '4s';
-- Signing secrets follow from the nonces and from a secret of the gateway's environment: none is in here.
CREATE TABLE webhook_endpoint (
    endpoint_id     text PRIMARY KEY,
    number          bigserial   NOT NULL,
    tenant          text        NOT NULL,
    name            text        NOT NULL,
    url             text        NOT NULL,
    event_types     text[]      NOT NULL,
    nonce           text        NOT NULL,
    previous_nonce  text,
    previous_until  timestamptz,
    is_enabled      boolean     NOT NULL DEFAULT true,
    disabled_reason text        NOT NULL DEFAULT '',
    disabled_at     timestamptz,
    failing_since   timestamptz,
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL
);
CREATE UNIQUE INDEX webhook_endpoint_of_tenant ON webhook_endpoint (tenant, number);

CREATE TABLE webhook_delivery (
    delivery_id      text PRIMARY KEY,
    number           bigserial   NOT NULL,
    endpoint_id      text        NOT NULL REFERENCES webhook_endpoint ON DELETE CASCADE,
    event_id         text        NOT NULL,
    event_type       text        NOT NULL,
    subject          text        NOT NULL,
    body             text        NOT NULL,
    replay_of        text,
    state            text        NOT NULL DEFAULT 'pending',
    attempts         integer     NOT NULL DEFAULT 0,
    first_attempt_at timestamptz,
    last_attempt_at  timestamptz,
    status_code      integer,
    error            text        NOT NULL DEFAULT '',
    created_at       timestamptz NOT NULL
);
CREATE UNIQUE INDEX webhook_delivery_of_endpoint ON webhook_delivery (endpoint_id, number);
CREATE INDEX webhook_delivery_pending ON webhook_delivery (endpoint_id, subject, number) WHERE state = 'pending';
CREATE INDEX webhook_delivery_age ON webhook_delivery (created_at);

-- One row for each endpoint and subject with pending deliveries, which are sent one after the other. Those of an
-- endpoint that is switched off are due at infinity.
CREATE TABLE webhook_queue (
    endpoint_id      text        NOT NULL REFERENCES webhook_endpoint ON DELETE CASCADE,
    subject          text        NOT NULL,
    due_at           timestamptz NOT NULL,
    lease_owner      text,
    lease_token      bigint      NOT NULL DEFAULT 0,
    lease_expires_at timestamptz,
    PRIMARY KEY (endpoint_id, subject)
);
CREATE INDEX webhook_queue_due ON webhook_queue (due_at);
CREATE INDEX webhook_queue_due_of_endpoint ON webhook_queue (endpoint_id, due_at);
CREATE INDEX webhook_queue_leased ON webhook_queue (lease_expires_at) WHERE lease_expires_at IS NOT NULL;
