-- 0017_mute_alerts.sql: rules that nobody is notified by, of all jobs of a tenant where no job is named
SET LOCAL lock_timeout = '4s';
CREATE TABLE alert_mute (
    tenant   text        NOT NULL,
    rule     text        NOT NULL,
    job_id   text        NOT NULL DEFAULT '',
    until    timestamptz,
    muted_by text        NOT NULL,
    muted_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, rule, job_id)
);

CREATE INDEX alert_mute_age ON alert_mute (muted_at);
