-- 0007_tell_absence_from_failure.sql: a task fails by itself alone, not by what is away nor by a process that ends

ALTER TABLE task RENAME COLUMN attempts TO failures;
ALTER TABLE task
    -- Something that the task needs has been away since then, as far as one try after another could tell.
    ADD COLUMN away_since   timestamptz,
    -- Its payload cannot be read, or its end cannot be told: left alone until it is asked for again.
    ADD COLUMN set_aside_at timestamptz;
