-- 0009_create_operator_views.sql: what operators' tools select from; they name no table of this schema
CREATE VIEW operator_evaluation AS
SELECT eval_id, state, version ->> 'digest' AS digest, version ->> 'base_sha' AS base_sha FROM evaluation;
