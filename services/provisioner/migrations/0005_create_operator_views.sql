-- 0005_create_operator_views.sql: what operators' tools select from; they name no table of this schema
CREATE VIEW operator_open_attempt AS
SELECT job_id, number AS attempt FROM attempt WHERE state NOT IN ('refused', 'released');

-- Nodes that are not released.
CREATE VIEW operator_node AS
SELECT pool, allocated_at FROM node WHERE released_at IS NULL;

CREATE VIEW operator_pool AS
SELECT name, nodes FROM pool;
