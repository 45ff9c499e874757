-- 0014_keep_what_the_backend_waits_for.sql: so that it is announced when the backend first has it, and once
SET LOCAL lock_timeout = '4s';
ALTER TABLE attempt ADD COLUMN waiting_for text NOT NULL DEFAULT '';
ALTER TABLE service_lease ADD COLUMN waiting_for text;
