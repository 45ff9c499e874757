-- 0019_bound_tenants_by_quotas.sql: what a tenant may have at once and ask in a day
ALTER TABLE tenant ADD COLUMN quotas jsonb NOT NULL DEFAULT '{}';

-- Jobs that were asked for and that nobody has answered yet; they count as open.
CREATE TABLE asked_job (
    command_id text PRIMARY KEY,
    job_id     text        NOT NULL,
    tenant     text        NOT NULL,
    asked_at   timestamptz NOT NULL
);
CREATE INDEX asked_job_of_tenant ON asked_job (tenant);

CREATE TABLE commands_of_day (
    tenant text   NOT NULL,
    day    date   NOT NULL,
    count  bigint NOT NULL,
    PRIMARY KEY (tenant, day)
);

CREATE INDEX bytes_of_tenant ON file (tenant) INCLUDE (size_bytes) WHERE state <> 'deleted';
