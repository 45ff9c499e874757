-- 0018_know_kafka_users.sql: whose facts are copied to a topic of their own, and who reads in Kafka

-- Both topics of the tenant exist.
ALTER TABLE tenant ADD COLUMN has_topics boolean NOT NULL DEFAULT false;

CREATE TABLE kafka_user (
    name         text        PRIMARY KEY,
    -- Null for a user of an internal team.
    tenant       text,
    reads        text[]      NOT NULL,
    writes       text[]      NOT NULL,
    group_prefix text        NOT NULL,
    changed_at   timestamptz NOT NULL
);
