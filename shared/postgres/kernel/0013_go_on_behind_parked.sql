-- 0013_go_on_behind_parked.sql: the first number of each story that is parked is found without reading those behind it
SET LOCAL lock_timeout = '4s';
CREATE INDEX parked_story ON parked (topic, aggregate_id, sequence, id) WHERE state = 'parked' AND blocks;
DROP INDEX parked_open;
