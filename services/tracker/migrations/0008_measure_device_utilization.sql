-- 0008_measure_device_utilization.sql: share of the time in which a device computed, where it is known
SET LOCAL lock_timeout = '4s';
ALTER TABLE step ADD COLUMN device_utilization double precision;
