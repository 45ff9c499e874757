-- 0012_time_swaps.sql: when slots were approved, and how long each replica took to serve what it loaded
SET LOCAL lock_timeout = '4s';
ALTER TABLE slot ADD COLUMN approval jsonb;

CREATE TABLE load_time (
    served_name       text             NOT NULL,
    replica_id        text             NOT NULL,
    incarnation       text             NOT NULL,
    fetch_seconds     double precision,
    load_seconds      double precision NOT NULL,
    read_back_seconds double precision NOT NULL,
    probe_seconds     double precision NOT NULL,
    loaded_at         timestamptz      NOT NULL,
    PRIMARY KEY (served_name, replica_id)
);

CREATE INDEX load_time_age ON load_time (loaded_at);
