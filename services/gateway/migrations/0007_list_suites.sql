-- 0007_list_suites.sql: what the gate asks, as eval.events told it
CREATE TABLE suite (
    name          text,
    is_benchmark  boolean,
    digest        text        NOT NULL,
    rows          int         NOT NULL,
    detail        jsonb       NOT NULL,
    registered_at timestamptz NOT NULL,
    PRIMARY KEY (name, is_benchmark)
);
