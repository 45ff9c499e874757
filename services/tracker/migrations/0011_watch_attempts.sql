-- 0011_watch_attempts.sql: what is known of an attempt for its alerts, which of them are open, and when to look again
SET LOCAL lock_timeout = '4s';
CREATE TABLE watch (
    job_id         text        NOT NULL,
    attempt        int         NOT NULL,
    tenant         text        NOT NULL,
    plan           jsonb       NOT NULL DEFAULT '{}',
    signals        jsonb       NOT NULL DEFAULT '{}',
    is_over        boolean     NOT NULL DEFAULT false,
    price_per_hour numeric     NOT NULL DEFAULT 0,
    began_at       timestamptz,
    look_at        timestamptz,
    changed_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (job_id, attempt)
) WITH (fillfactor = 70);

CREATE INDEX watch_open ON watch (job_id, attempt) WHERE NOT is_over;
CREATE INDEX watch_over ON watch (changed_at) WHERE is_over;
