-- 0002_know_devices_of_pools.sql: what the nodes of a pool compute on, where its file says so
ALTER TABLE pool ADD COLUMN device text, ADD COLUMN device_memory_bytes bigint;
