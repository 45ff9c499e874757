-- NULL: registered before its capabilities were announced.
SET LOCAL lock_timeout = '4s';
ALTER TABLE base_model ADD COLUMN capabilities jsonb;
