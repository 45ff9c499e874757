-- 0014_know_devices_of_pools.sql: what a machine of each pool has, by which a large model gets several devices
SET LOCAL lock_timeout = '4s';
CREATE TABLE pool (
    name                text    PRIMARY KEY,
    devices_per_node    integer NOT NULL,
    device_memory_bytes bigint
);
