-- 0008_drop_rows_set_aside.sql: an operator may leave out an event that Kafka will never take

-- Events that were written, never published, and left out by a person.
CREATE TABLE dropped_event (
    id           bigint      PRIMARY KEY,
    event_id     text        NOT NULL,
    topic        text        NOT NULL,
    aggregate_id text        NOT NULL,
    sequence     bigint      NOT NULL,
    type         text        NOT NULL,
    headers      jsonb       NOT NULL,
    value        bytea       NOT NULL,
    created_at   timestamptz NOT NULL,
    reason       text        NOT NULL,
    dropped_by   text        NOT NULL DEFAULT session_user,
    dropped_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Those behind it take its numbers: a reader sees a story without a gap. The counter's row lock keeps writers of the
-- aggregate out meanwhile. Returns how many rows are sent now; null where the row is not set aside.
DO $$
BEGIN
    EXECUTE format($create$
        CREATE FUNCTION drop_set_aside(row_id bigint, why text) RETURNS bigint
        LANGUAGE plpgsql SECURITY DEFINER SET search_path = %I, pg_temp AS $body$
        DECLARE
            gone     outbox%%ROWTYPE;
            released bigint;
        BEGIN
            SELECT outbox.* INTO gone FROM outbox JOIN set_aside USING (id) WHERE id = row_id;
            IF NOT FOUND THEN
                RETURN NULL;
            END IF;
            PERFORM FROM sequence
              WHERE topic = gone.topic AND aggregate_id = gone.aggregate_id FOR UPDATE;
            IF EXISTS (SELECT FROM outbox
                        WHERE topic = gone.topic AND aggregate_id = gone.aggregate_id AND sequence > gone.sequence
                          AND NOT EXISTS (SELECT FROM unpublished WHERE unpublished.id = outbox.id)
                          AND NOT EXISTS (SELECT FROM set_aside WHERE set_aside.id = outbox.id)) THEN
                RAISE EXCEPTION 'later events of %% are published: their numbers stand', gone.aggregate_id
                    USING ERRCODE = 'RT001';
            END IF;
            DELETE FROM set_aside WHERE id = row_id;
            DELETE FROM outbox WHERE id = row_id;
            INSERT INTO dropped_event (id, event_id, topic, aggregate_id, sequence, type, headers, value, created_at,
                                       reason)
            VALUES (gone.id, gone.event_id, gone.topic, gone.aggregate_id, gone.sequence, gone.type, gone.headers,
                    gone.value, gone.created_at, why);
            -- In two steps: the number before each is free only once that one has moved.
            UPDATE outbox SET sequence = -sequence
             WHERE topic = gone.topic AND aggregate_id = gone.aggregate_id AND sequence > gone.sequence;
            UPDATE outbox SET sequence = -sequence - 1
             WHERE topic = gone.topic AND aggregate_id = gone.aggregate_id AND sequence < 0;
            UPDATE sequence SET last = last - 1
             WHERE topic = gone.topic AND aggregate_id = gone.aggregate_id;
            WITH free AS (
                DELETE FROM set_aside WHERE topic = gone.topic AND aggregate_id = gone.aggregate_id RETURNING id),
            again AS (
                INSERT INTO unpublished SELECT id FROM free ON CONFLICT DO NOTHING RETURNING id)
            SELECT count(*) INTO released FROM again;
            RETURN released;
        END
        $body$ $create$, current_schema());
END $$;
REVOKE ALL ON FUNCTION drop_set_aside FROM PUBLIC;
GRANT EXECUTE ON FUNCTION drop_set_aside TO operator;
