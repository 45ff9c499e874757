-- 0005_create_operator_views.sql: what operators' tools select from; they name no table of this schema
-- Attempts that have runners and are not closed.
CREATE VIEW operator_open_attempt AS
SELECT job_id, number AS attempt FROM attempt
 WHERE state <> 'closed'
   AND EXISTS (SELECT FROM runner WHERE runner.job_id = attempt.job_id AND runner.number = attempt.number);
