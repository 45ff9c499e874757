-- 0011_follow_nodes.sql: replicas on nodes of other backends' pools; what each shall have, and what it has reported
SET LOCAL lock_timeout = '4s';
ALTER TABLE held_lease ADD COLUMN node jsonb;

CREATE TABLE replica_node (
    replica_id text  PRIMARY KEY,
    lease_id   text  NOT NULL,
    folders    jsonb NOT NULL DEFAULT '[]',
    start      jsonb,
    report     jsonb NOT NULL
);
