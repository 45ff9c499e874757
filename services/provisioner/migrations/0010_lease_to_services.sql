-- 0010_lease_to_services.sql: services lease devices as nodes do; each device has one holder, a node or a lease
SET LOCAL lock_timeout = '4s';
CREATE TABLE service_lease (
    lease_id    text        PRIMARY KEY,
    holder      text        NOT NULL,
    purpose     text        NOT NULL,
    pool        text        NOT NULL REFERENCES pool (name),
    num_devices int         NOT NULL,
    asked_at    timestamptz NOT NULL,
    until       timestamptz NOT NULL,
    state       text        NOT NULL,
    machine     int,
    devices     jsonb       NOT NULL,
    end_reason  text,
    ended_at    timestamptz
);
CREATE INDEX service_lease_open ON service_lease (pool, asked_at, lease_id) WHERE state <> 'ended';
CREATE INDEX service_lease_ended ON service_lease (ended_at) WHERE ended_at IS NOT NULL;

ALTER TABLE device_lease ALTER COLUMN node_id DROP NOT NULL,
                         ADD COLUMN lease_id text REFERENCES service_lease (lease_id),
                         ADD CONSTRAINT device_lease_has_one_holder CHECK (num_nonnulls(node_id, lease_id) = 1);
CREATE INDEX device_lease_lease ON device_lease (lease_id) WHERE lease_id IS NOT NULL;

-- Leases that have not ended.
CREATE VIEW operator_lease AS
SELECT lease_id, holder, pool, until FROM service_lease WHERE state <> 'ended';
