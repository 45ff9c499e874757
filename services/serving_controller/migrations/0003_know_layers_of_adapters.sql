-- NULL: every layer that vLLM can give adapters; empty: served without adapters.
SET LOCAL lock_timeout = '4s';
ALTER TABLE base_model ADD COLUMN adapter_layers text[];
