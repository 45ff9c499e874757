-- 0011_limit_devices_of_tenants.sql: how many devices a tenant's attempts may hold at once; null or no row: no limit
CREATE TABLE device_limit (
    tenant  text   PRIMARY KEY,
    devices bigint CHECK (devices >= 0)
);
