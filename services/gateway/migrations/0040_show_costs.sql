-- 0040_show_costs.sql: what each attempt cost, and what tenants may be charged in a month
SET LOCAL lock_timeout = '4s';
CREATE TABLE attempt_cost (
    job_id         text             NOT NULL,
    attempt        int              NOT NULL,
    tenant         text             NOT NULL,
    pool           text             NOT NULL,
    capacity_type  text             NOT NULL,
    node_seconds   double precision NOT NULL,
    device_seconds double precision NOT NULL,
    cost           numeric(18, 6)   NOT NULL,
    charged        numeric(18, 6)   NOT NULL,
    failure_class  text,
    ended_at       timestamptz      NOT NULL,
    PRIMARY KEY (job_id, attempt)
);

CREATE INDEX attempt_cost_of_tenant ON attempt_cost (tenant, ended_at);

-- `limited_cost`: what the tracker was asked last, null as long as it knows no limit.
ALTER TABLE tenant
    ADD COLUMN limited_cost      bigint,
    ADD COLUMN budget_reached_at timestamptz;
CREATE INDEX tenant_at_budget ON tenant (name) WHERE budget_reached_at IS NOT NULL;
