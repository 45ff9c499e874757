-- 0042_keep_recent_events.sql: the newest events of each tenant with their records, for people to read
SET LOCAL lock_timeout = '4s';
CREATE TABLE recent_event (
    number      bigserial PRIMARY KEY,
    tenant      text        NOT NULL,
    type        text        NOT NULL,
    subject     text        NOT NULL,
    level       text        NOT NULL,
    message     text        NOT NULL,
    topic       text        NOT NULL,
    partition   integer     NOT NULL,
    record_offset bigint    NOT NULL,
    key         text        NOT NULL,
    headers     jsonb       NOT NULL,
    payload     text        NOT NULL,
    sent_at     timestamptz NOT NULL,
    recorded_at timestamptz NOT NULL
);
CREATE INDEX recent_event_of_tenant ON recent_event (tenant, number);
CREATE INDEX recent_event_of_type ON recent_event (tenant, type, number);
CREATE INDEX recent_event_of_subject ON recent_event (tenant, subject, number);
