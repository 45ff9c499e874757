-- 0001_create_dataset.sql: versions, the requests they answer, and what versions are made of and used by
CREATE TABLE base_model (
    base_sha        text PRIMARY KEY,
    manifest_sha256 text   NOT NULL,
    template_sha256 text   NOT NULL,
    context_tokens  bigint NOT NULL
);

-- Benchmarks and safety suites by name; a name registered again replaces its file.
CREATE TABLE source (
    kind   text  NOT NULL,
    name   text  NOT NULL,
    digest text  NOT NULL,
    file   jsonb NOT NULL,
    PRIMARY KEY (kind, name)
);

CREATE TABLE version (
    id         text PRIMARY KEY,
    tenant     text  NOT NULL,
    state      text  NOT NULL,
    base_sha   text  NOT NULL REFERENCES base_model,
    benchmarks jsonb NOT NULL,
    suites     jsonb NOT NULL,
    ready      jsonb,
    rejection  jsonb,
    revision   int   NOT NULL DEFAULT 0,
    CHECK (state <> 'ready' OR ready IS NOT NULL),
    CHECK (state <> 'rejected' OR rejection IS NOT NULL)
);
CREATE INDEX version_deleting ON version (id) WHERE state = 'deleting';

CREATE TABLE request (
    dataset_id  text PRIMARY KEY,
    tenant      text    NOT NULL,
    version     text    NOT NULL REFERENCES version,
    is_answered boolean NOT NULL
);
CREATE INDEX request_version ON request (version);

-- Jobs of which an attempt runs or a model is evaluated; bytes of their version stay.
CREATE TABLE job_use (
    job_id  text PRIMARY KEY,
    version text NOT NULL
);
CREATE INDEX job_use_version ON job_use (version);
