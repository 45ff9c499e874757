-- 0008_create_operator_views.sql: what operators' tools select from; they name no table of this schema
CREATE VIEW operator_base_model AS
SELECT base_sha, manifest_sha256 FROM base_version;

CREATE VIEW operator_model_version AS
SELECT model_id, tenant, job_id, digest, base_sha, dataset_version, config_hash, bundle_attempt, bundle_step,
       bundle_manifest_sha256, stage, eval_id, archived_at IS NOT NULL AS is_archived
  FROM model_version;

-- What each slot was to serve, by the number of the decision.
CREATE VIEW operator_generation AS
SELECT tenant, slot, number, model_id, digest, outcome FROM slot_generation;
