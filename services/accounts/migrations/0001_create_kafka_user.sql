-- 0001_create_kafka_user.sql: users of Kafka as they should be; the broker has what they are
CREATE TABLE kafka_user (
    name     text   PRIMARY KEY,
    -- Null for a user of an internal team.
    tenant   text,
    reads    text[] NOT NULL,
    writes   text[] NOT NULL,
    -- The password follows from it and a secret that is not kept here.
    nonce    text   NOT NULL,
    state    text   NOT NULL CHECK (state IN ('changing', 'active', 'removing', 'removed')),
    -- Rises with each command.
    revision bigint NOT NULL
);

-- Tenants whose topics exist.
CREATE TABLE opened_tenant (
    name text PRIMARY KEY
);
