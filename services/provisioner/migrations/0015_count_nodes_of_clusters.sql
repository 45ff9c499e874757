-- 0015_count_nodes_of_clusters.sql: a pool that does not say its nodes has as many as its cluster
SET LOCAL lock_timeout = '4s';
ALTER TABLE pool ALTER COLUMN file_nodes DROP NOT NULL;
