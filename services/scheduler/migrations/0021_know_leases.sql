-- 0021_know_leases.sql: what services have leased of each pool, as its provisioner announced it last
SET LOCAL lock_timeout = '4s';
ALTER TABLE pool ADD COLUMN leases jsonb NOT NULL DEFAULT '[]';
