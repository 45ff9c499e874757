-- 0006_show_evidence_and_approvals.sql: by what a verdict was reached, and who approved a version for production
SET LOCAL lock_timeout = '4s';
ALTER TABLE evaluation
    ADD COLUMN number int NOT NULL DEFAULT 0,
    ADD COLUMN evidence jsonb;
ALTER TABLE model
    ADD COLUMN has_holdout boolean,
    ADD COLUMN approved_by text,
    ADD COLUMN approval_reason text NOT NULL DEFAULT '',
    ADD COLUMN accepted_without_holdout boolean NOT NULL DEFAULT false;
