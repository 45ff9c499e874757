-- 0007_rename_groups_of_replicas.sql: replicas that are alike are a replica set; a group is of Kafka
SET LOCAL lock_timeout = '4s';
ALTER TABLE replica RENAME COLUMN group_name TO replica_set;
ALTER TABLE wanted RENAME COLUMN group_name TO replica_set;
ALTER TABLE wanted_group RENAME TO wanted_replica_set;
