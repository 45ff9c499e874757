-- 0036_show_alerts.sql: alerts about attempts, as they were raised and cleared
SET LOCAL lock_timeout = '4s';
CREATE TABLE alert (
    number        bigserial        NOT NULL,
    job_id        text             NOT NULL,
    attempt       int              NOT NULL,
    rule          text             NOT NULL,
    episode       bigint           NOT NULL,
    tenant        text             NOT NULL,
    step          int              NOT NULL,
    value         double precision,
    limit_value   double precision,
    message       text             NOT NULL,
    raised_at     timestamptz      NOT NULL,
    cleared_at    timestamptz,
    cleared_by    text             NOT NULL DEFAULT '',
    PRIMARY KEY (job_id, attempt, rule, episode)
);
CREATE UNIQUE INDEX alert_of_tenant ON alert (tenant, number);
CREATE INDEX alert_open_of_tenant ON alert (tenant, number) WHERE cleared_at IS NULL;
CREATE INDEX alert_open_of_job ON alert (job_id, number) WHERE cleared_at IS NULL;
CREATE INDEX alert_age ON alert (raised_at);
