-- 0007_meet_by_certificate.sql: where an attempt's nodes are by their cluster backend, and whom their runners let in
SET LOCAL lock_timeout = '4s';
ALTER TABLE attempt ADD COLUMN addresses text[];
ALTER TABLE runner ADD COLUMN certificate text;
