-- What the registry said.
CREATE TABLE model_name (
    model_id  text PRIMARY KEY,
    full_name text NOT NULL
);

CREATE TABLE base_model (
    name     text PRIMARY KEY,
    base_sha text NOT NULL
);

CREATE TABLE stale_base (
    base_model text NOT NULL,
    base_sha   text NOT NULL,
    PRIMARY KEY (base_model, base_sha)
);

-- What each slot is meant to serve (by its highest generation) and where its requests go.
CREATE TABLE slot (
    tenant     text NOT NULL,
    name       text NOT NULL,
    generation bigint NOT NULL,
    state      text NOT NULL CHECK (state IN ('pending', 'ready', 'failed', 'withdrawn')),
    desired    jsonb,
    route      jsonb,
    served     text[] NOT NULL,
    groups     text[] NOT NULL,
    revision   bigint NOT NULL DEFAULT 1,
    PRIMARY KEY (tenant, name),
    CONSTRAINT what_is_wanted_is_named CHECK (state NOT IN ('pending', 'ready') OR desired IS NOT NULL)
);

CREATE TABLE retired (
    served_name text PRIMARY KEY,
    servable    jsonb NOT NULL,
    keep_until  timestamptz NOT NULL
);

-- What was started and announced. The processes themselves are the truth of what runs.
CREATE TABLE replica (
    replica_id  text PRIMARY KEY,
    group_name  text NOT NULL,
    base_sha    text NOT NULL,
    phase       text NOT NULL CHECK (phase IN ('starting', 'ready', 'lost')),
    incarnation text NOT NULL,
    url         text NOT NULL,
    started_at  timestamptz NOT NULL,
    max_rank    integer NOT NULL,
    served_base text NOT NULL,
    announced   text[] NOT NULL,
    loaded      text[] NOT NULL,
    failures    integer NOT NULL,
    not_before  timestamptz,
    reason      text NOT NULL
);
