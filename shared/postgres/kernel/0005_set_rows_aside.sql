-- 0005_set_rows_aside.sql: one row that Kafka refuses for itself must not hold all others

-- Rows of the outbox that are not sent, and those behind them of the same aggregate.
CREATE TABLE set_aside (
    id           bigint PRIMARY KEY REFERENCES outbox (id),
    topic        text        NOT NULL,
    aggregate_id text        NOT NULL,
    detail       text        NOT NULL,
    set_aside_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX set_aside_aggregate ON set_aside (topic, aggregate_id);

DO $$
BEGIN
    EXECUTE format($create$
        CREATE OR REPLACE FUNCTION republish(ids bigint[]) RETURNS bigint
        LANGUAGE sql SECURITY DEFINER SET search_path = %I, pg_temp AS $body$
            WITH released AS (
                DELETE FROM set_aside WHERE id = ANY(ids)),
            again AS (
                INSERT INTO unpublished SELECT id FROM outbox WHERE id = ANY(ids)
                ON CONFLICT DO NOTHING RETURNING id)
            SELECT count(*) FROM again
        $body$ $create$, current_schema());
END $$;
