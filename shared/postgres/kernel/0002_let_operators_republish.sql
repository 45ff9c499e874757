-- 0002_let_operators_republish.sql: an operator may have the relay send rows again that Kafka has lost; no more
DO $$
BEGIN
    EXECUTE format($create$
        CREATE FUNCTION republish(ids bigint[]) RETURNS bigint
        LANGUAGE sql SECURITY DEFINER SET search_path = %I, pg_temp AS $body$
            WITH again AS (
                UPDATE outbox SET published_at = NULL
                 WHERE id = ANY(ids) AND published_at IS NOT NULL RETURNING id)
            SELECT count(*) FROM again
        $body$ $create$, current_schema());
END $$;
REVOKE ALL ON FUNCTION republish FROM PUBLIC;
GRANT EXECUTE ON FUNCTION republish TO operator;
