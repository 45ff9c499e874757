-- 0009_lease_devices.sql: devices that are leased of the provisioner, one lease for each subject (shared/device_leases)
CREATE TABLE held_lease (
    subject  text        PRIMARY KEY,
    lease_id text        NOT NULL UNIQUE,
    state    text        NOT NULL,
    devices  jsonb       NOT NULL DEFAULT '[]',
    device   text,
    until    timestamptz,
    reason   text        NOT NULL DEFAULT ''
);

CREATE VIEW operator_held_lease AS
SELECT lease_id, state FROM held_lease;
