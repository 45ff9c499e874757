-- Versions under evaluation: a place on one replica until a time, and whose command is to be answered.
CREATE TABLE candidate (
    eval_id    text PRIMARY KEY,
    servable   jsonb NOT NULL,
    until      timestamptz NOT NULL,
    command_id text NOT NULL,
    host       jsonb
);
