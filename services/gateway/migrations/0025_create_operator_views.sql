-- 0025_create_operator_views.sql: what operators' tools select from; they name no table of this schema
CREATE VIEW operator_tenant AS
SELECT name, has_topics FROM tenant;

-- Files whose bytes are in S3.
CREATE VIEW operator_file AS
SELECT file_id, sha256, size_bytes FROM file WHERE state IN ('uploaded', 'deleting');

-- Bytes of deleted files, where no other file has the same and nothing needs them.
CREATE VIEW operator_removed_bytes AS
SELECT sha256, max(removed_at) AS removed_at
  FROM file AS removed
 WHERE state = 'deleted'
   AND NOT EXISTS (SELECT FROM needed_bytes WHERE needed_bytes.sha256 = removed.sha256)
   AND NOT EXISTS (SELECT FROM file WHERE file.sha256 = removed.sha256 AND file.state <> 'deleted')
 GROUP BY sha256;
