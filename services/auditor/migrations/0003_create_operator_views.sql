-- 0003_create_operator_views.sql: what operators' tools select from; they name no table of this schema
-- Statements that are in S3.
CREATE VIEW operator_statement AS
SELECT number FROM statement WHERE put_at IS NOT NULL;
