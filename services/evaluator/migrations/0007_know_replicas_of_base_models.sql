-- 0007_know_replicas_of_base_models.sql: which ready replica could give a gate's answers, and where a candidate is
CREATE TABLE replica (
    replica_id  text NOT NULL,
    base_model  text NOT NULL,
    base_sha    text NOT NULL,
    incarnation text NOT NULL,
    engine      text NOT NULL,
    device      text NOT NULL,
    PRIMARY KEY (replica_id, base_model)
);

-- One row while an evaluation waits for a place or has one.
CREATE TABLE place (
    eval_id     text PRIMARY KEY,
    problem     text NOT NULL DEFAULT '',
    replica_id  text,
    incarnation text,
    url         text,
    served_name text,
    served_base text
);
