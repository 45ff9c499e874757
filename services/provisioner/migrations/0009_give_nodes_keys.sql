-- 0009_give_nodes_keys.sql: the public key of each node, once it was given the private one
SET LOCAL lock_timeout = '4s';
ALTER TABLE node ADD COLUMN public_key text;
