-- 0015_name_tokens.sql: epoch is a pass over the data, and what fences a lease is its token
ALTER TABLE lease RENAME COLUMN epoch TO token;
ALTER TABLE task RENAME COLUMN lease_epoch TO lease_token;
ALTER TABLE parked RENAME COLUMN settled_at TO resolved_at;
ALTER INDEX parked_settled RENAME TO parked_resolved;
