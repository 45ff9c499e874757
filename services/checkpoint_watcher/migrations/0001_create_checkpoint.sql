-- 0001_create_checkpoint.sql: every bundle that was written, and the present attempt of each job
CREATE TABLE checkpoint (
    job_id          text        NOT NULL,
    tenant          text        NOT NULL,
    attempt         int         NOT NULL,
    step            int         NOT NULL,
    manifest_sha256 text        NOT NULL,
    kind            text        NOT NULL,
    state           text        NOT NULL,
    size_bytes      bigint,
    written_at      timestamptz NOT NULL,
    PRIMARY KEY (job_id, attempt, step, manifest_sha256)
);

CREATE TABLE attempt (
    job_id           text PRIMARY KEY,
    tenant           text             NOT NULL,
    attempt          int              NOT NULL,
    interval_seconds double precision NOT NULL,
    resume_attempt   int,
    resume_step      int,
    is_open          boolean          NOT NULL,
    last_step        int              NOT NULL DEFAULT 0,
    started_at       timestamptz,
    last_written_at  timestamptz
);
