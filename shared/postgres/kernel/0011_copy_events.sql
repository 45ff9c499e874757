-- 0011_copy_events.sql: a copy of an event has the event's id, and its original may lie in the same outbox
ALTER TABLE outbox DROP CONSTRAINT outbox_event_id_key;
ALTER TABLE outbox ADD CONSTRAINT outbox_topic_event_id_key UNIQUE (topic, event_id);
