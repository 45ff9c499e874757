-- 0001_create_evaluation.sql: what jobs ask their models to be held against, suites, baselines, evaluations
CREATE TABLE artefact (
    job_id text PRIMARY KEY,
    tenant text  NOT NULL,
    body   jsonb NOT NULL
);

CREATE TABLE model_version (
    model_id text PRIMARY KEY,
    tenant   text  NOT NULL,
    job_id   text  NOT NULL,
    body     jsonb NOT NULL
);
CREATE INDEX model_version_job ON model_version (job_id);

CREATE TABLE evaluation (
    eval_id    text PRIMARY KEY,
    job_id     text        NOT NULL,
    model_id   text,
    state      text        NOT NULL,
    artefact   jsonb       NOT NULL,
    version    jsonb,
    stages     jsonb       NOT NULL,
    reason     text        NOT NULL,
    revision   int         NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CHECK (state IN ('waiting', 'abandoned') OR model_id IS NOT NULL)
);
CREATE INDEX evaluation_job ON evaluation (job_id);
CREATE INDEX evaluation_model ON evaluation (model_id);

-- A name may point to several files over time; verdicts name the digest.
CREATE TABLE suite (
    name          text        NOT NULL,
    digest        text        NOT NULL,
    kind          text,
    file          jsonb       NOT NULL,
    num_fewshot   int         NOT NULL,
    rows          int         NOT NULL,
    registered_at timestamptz NOT NULL,
    PRIMARY KEY (name, digest)
);

CREATE TABLE baseline (
    base_sha        text             NOT NULL,
    harness_version text             NOT NULL,
    template_sha256 text             NOT NULL,
    suite_digest    text             NOT NULL,
    name            text             NOT NULL,
    metric          text             NOT NULL,
    value           double precision NOT NULL,
    count           int              NOT NULL,
    key             text             NOT NULL,
    sha256          text             NOT NULL,
    PRIMARY KEY (base_sha, harness_version, template_sha256, suite_digest)
);

CREATE TABLE verdict (
    result_key text PRIMARY KEY,
    result     jsonb NOT NULL
);
