-- 0051_mute_alerts.sql: what an alert's numbers are in, and which rules nobody is notified by
SET LOCAL lock_timeout = '4s';
ALTER TABLE alert ADD COLUMN unit text;
ALTER TABLE alert ADD COLUMN is_muted boolean NOT NULL DEFAULT false;
CREATE INDEX alert_of_day ON alert (tenant, raised_at);

CREATE TABLE alert_mute (
    tenant   text        NOT NULL,
    rule     text        NOT NULL,
    job_id   text        NOT NULL DEFAULT '',
    until    timestamptz,
    muted_by text        NOT NULL,
    muted_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, rule, job_id)
);

CREATE INDEX alert_mute_age ON alert_mute (muted_at);
