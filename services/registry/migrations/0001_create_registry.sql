-- What a base model's files are; kept for ever, so that lineage stays complete.
CREATE TABLE base_version (
    base_sha        text PRIMARY KEY,
    manifest_sha256 text NOT NULL,
    source          text NOT NULL,
    template_sha256 text NOT NULL,
    context_tokens  bigint NOT NULL,
    num_parameters  bigint NOT NULL,
    tensors         jsonb NOT NULL,
    registered_at   timestamptz NOT NULL
);

CREATE TABLE base_model (
    name     text PRIMARY KEY,
    base_sha text NOT NULL REFERENCES base_version
);

CREATE TABLE model_version (
    model_id               text PRIMARY KEY,
    tenant                 text NOT NULL,
    job_id                 text NOT NULL,
    digest                 text NOT NULL,
    full_name              text NOT NULL,
    kind                   text NOT NULL CHECK (kind IN ('adapter', 'full')),
    rank                   integer NOT NULL,
    base_model             text NOT NULL,
    base_sha               text NOT NULL REFERENCES base_version,
    dataset_version        text NOT NULL,
    config_hash            text NOT NULL,
    template_sha256        text NOT NULL,
    bundle_attempt         integer NOT NULL,
    bundle_step            bigint NOT NULL,
    bundle_manifest_sha256 text NOT NULL,
    auto_deploy            boolean NOT NULL,
    stage                  text NOT NULL CHECK (stage IN ('dev', 'staging', 'production')),
    eval_id                text,
    archived_at            timestamptz,
    verdict                jsonb,
    registered_at          timestamptz NOT NULL,
    revision               bigint NOT NULL DEFAULT 1,
    CONSTRAINT nothing_leaves_dev_without_an_evaluation CHECK (stage = 'dev' OR eval_id IS NOT NULL),
    CONSTRAINT one_version_per_tenant_job_digest UNIQUE (tenant, job_id, digest)
);

CREATE INDEX model_version_by_name ON model_version (tenant, full_name);
CREATE INDEX model_version_by_base ON model_version (base_sha);
CREATE INDEX model_version_by_dataset ON model_version (dataset_version);

CREATE TABLE slot (
    tenant   text NOT NULL,
    name     text NOT NULL,
    desired  text REFERENCES model_version,
    revision bigint NOT NULL DEFAULT 1,
    PRIMARY KEY (tenant, name)
);

CREATE INDEX slot_by_desired ON slot (desired) WHERE desired IS NOT NULL;

CREATE TABLE slot_generation (
    tenant   text NOT NULL,
    slot     text NOT NULL,
    number   bigint NOT NULL,
    model_id text REFERENCES model_version,
    digest   text,
    outcome  text NOT NULL CHECK (outcome IN ('pending', 'ready', 'failed', 'withdrawn')),
    PRIMARY KEY (tenant, slot, number),
    FOREIGN KEY (tenant, slot) REFERENCES slot,
    CONSTRAINT a_withdrawal_serves_nothing CHECK ((outcome = 'withdrawn') = (model_id IS NULL))
);
