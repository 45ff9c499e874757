-- 0017_show_what_training_found.sql: what a device needs by estimate, and what the newest attempt found before its first
-- step: device, packing verdict, parameters, batch and memory
ALTER TABLE job ADD COLUMN preparation jsonb, ADD COLUMN estimated_memory jsonb;
