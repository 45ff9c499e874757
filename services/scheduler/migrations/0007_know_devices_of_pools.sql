-- 0007_know_devices_of_pools.sql: what the nodes of a pool compute on, where its operator says so
ALTER TABLE pool ADD COLUMN device text, ADD COLUMN device_memory_bytes bigint;
ALTER TABLE attempt ADD COLUMN device text;
