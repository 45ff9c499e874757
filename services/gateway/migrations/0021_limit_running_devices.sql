-- 0021_limit_running_devices.sql: the limit of running devices that the scheduler applies to a tenant; null: none
SET LOCAL lock_timeout = '4s';
ALTER TABLE tenant ADD COLUMN limited_devices bigint;
