-- 0008_know_obstacles_at_submit.sql: rows of uploads, the gate's policy, and what a job was warned of
ALTER TABLE file ADD COLUMN num_rows bigint;
ALTER TABLE job ADD COLUMN warnings jsonb NOT NULL DEFAULT '[]';
CREATE TABLE gate_policy (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    detail    jsonb NOT NULL
);
