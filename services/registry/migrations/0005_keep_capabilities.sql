-- NULL: registered before they were found; the next registration of the same files fills it.
SET LOCAL lock_timeout = '4s';
ALTER TABLE base_version ADD COLUMN capabilities jsonb;
