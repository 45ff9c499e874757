-- 0010_prune_by_topic.sql: the inbox keeps ids for as long as their topic keeps records, and settled rows go too
SET LOCAL lock_timeout = '4s';
CREATE INDEX inbox_age ON inbox (topic, applied_at);
DROP INDEX inbox_applied;
CREATE INDEX parked_settled ON parked (settled_at) WHERE settled_at IS NOT NULL;
CREATE INDEX dropped_event_age ON dropped_event (dropped_at);
