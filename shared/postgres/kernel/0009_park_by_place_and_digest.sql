-- 0009_park_by_place_and_digest.sql: offsets begin again when a topic is made again, so a place names no record

ALTER TABLE parked
    -- Of key, headers and value. Empty for rows of before: what they held is not compared any more.
    ADD COLUMN record_sha256 bytea NOT NULL DEFAULT '',
    -- Beyond the limit of a topic that others write: place, reason and digests alone.
    ADD COLUMN is_bare       boolean NOT NULL DEFAULT false;
ALTER TABLE parked DROP CONSTRAINT parked_topic_partition_offset_key;
CREATE UNIQUE INDEX parked_record ON parked (topic, partition, "offset", record_sha256);
CREATE INDEX parked_whole ON parked (topic) WHERE NOT is_bare;
