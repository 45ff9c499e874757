-- 0006_prove_claims.sql: a claim counts where its node signed it; what was kept by an older release has no signature
SET LOCAL lock_timeout = '4s';
ALTER TABLE attempt ADD COLUMN public_keys text[];
ALTER TABLE kept_claim ADD COLUMN signed bytea, ADD COLUMN signature bytea;
