-- 0013_score_on_nodes.sql: where the devices of a lease are on a node of another backend's pool, what each evaluation's node
-- shall score, and what it has reported
SET LOCAL lock_timeout = '4s';
ALTER TABLE held_lease ADD COLUMN node jsonb;

CREATE TABLE scoring_node (
    eval_id    text    PRIMARY KEY,
    work       jsonb   NOT NULL,
    report     jsonb,
    lost_nodes integer NOT NULL DEFAULT 0
);
