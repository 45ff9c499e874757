-- 0003_keep_unpublished_apart.sql: to mark a row as published would write it, and its five index entries, anew

-- Ids of the rows of the outbox that are not in Kafka yet; the relay takes them away.
CREATE TABLE unpublished (
    id bigint PRIMARY KEY
);
INSERT INTO unpublished SELECT id FROM outbox WHERE published_at IS NULL;

-- With the column go the two indexes on it.
ALTER TABLE outbox DROP COLUMN published_at;
-- Rows lie in the order in which they were made.
CREATE INDEX outbox_created ON outbox USING brin (created_at);

DO $$
BEGIN
    EXECUTE format($create$
        CREATE OR REPLACE FUNCTION republish(ids bigint[]) RETURNS bigint
        LANGUAGE sql SECURITY DEFINER SET search_path = %I, pg_temp AS $body$
            WITH again AS (
                INSERT INTO unpublished SELECT id FROM outbox WHERE id = ANY(ids)
                ON CONFLICT DO NOTHING RETURNING id)
            SELECT count(*) FROM again
        $body$ $create$, current_schema());
END $$;
