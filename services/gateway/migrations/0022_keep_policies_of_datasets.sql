-- 0022_keep_policies_of_datasets.sql: a job's memory depends on the window of its dataset; null where nobody asked for the
-- dataset here, or before this
SET LOCAL lock_timeout = '4s';
ALTER TABLE dataset ADD COLUMN policy jsonb;
