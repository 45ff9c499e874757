-- 0047_show_attempts_and_machines.sql: which attempt did a step first, since a later one that resumed before it does it
-- again; and why machines take no work
SET LOCAL lock_timeout = '4s';
ALTER TABLE step ADD COLUMN first_attempt int;
CREATE TABLE cordon (
    pool       text        NOT NULL,
    machine    text        NOT NULL,
    source     text        NOT NULL,
    reason     text        NOT NULL,
    is_lifted  boolean     NOT NULL,
    changed_at timestamptz NOT NULL,
    PRIMARY KEY (pool, machine)
);
CREATE INDEX job_held_since ON job (held_since) WHERE held_since IS NOT NULL;
