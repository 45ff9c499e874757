-- 0014_limit_spending_of_months.sql: what tenants may be charged in a month, and time of devices
SET LOCAL lock_timeout = '4s';
CREATE TABLE spending_limit (
    tenant        text    NOT NULL PRIMARY KEY,
    cost_per_month numeric NOT NULL
);

ALTER TABLE cost ADD COLUMN device_seconds double precision;
CREATE INDEX cost_of_tenant ON cost (tenant, until);
