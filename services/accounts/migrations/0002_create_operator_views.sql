-- 0002_create_operator_views.sql: what operators' tools select from; they name no table of this schema
CREATE VIEW operator_kafka_user AS
SELECT name, reads, writes, state FROM kafka_user;
