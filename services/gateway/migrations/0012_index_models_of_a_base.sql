-- 0012_index_models_of_a_base.sql: a base model that gets other files makes its versions stale
SET LOCAL lock_timeout = '4s';
CREATE INDEX model_of_base ON model (base_model);
