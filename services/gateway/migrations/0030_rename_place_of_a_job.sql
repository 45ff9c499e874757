-- 0030_rename_place_of_a_job.sql: what the scheduler says of a queued job is its entry of the queue
SET LOCAL lock_timeout = '4s';
ALTER TABLE job RENAME COLUMN place TO queue_entry;
