-- 0003_create_operator_views.sql: what operators' tools select from; they name no table of this schema
CREATE VIEW operator_dataset AS
SELECT id AS dataset_version, state, ready ->> 'manifest_sha256' AS manifest_sha256 FROM version;
