-- 0020_show_places_in_the_queue.sql: where a queued job stands, as the scheduler said last
SET LOCAL lock_timeout = '4s';
ALTER TABLE job ADD COLUMN place jsonb;
