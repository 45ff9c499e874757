-- 0004_show_the_gate_of_a_job.sql: how a job ended, and its evaluations by job
ALTER TABLE job ADD COLUMN is_promoted boolean, ADD COLUMN ending text NOT NULL DEFAULT '';
CREATE INDEX evaluation_of_job ON evaluation (job_id, created_at);
