-- 0013_keep_to_budgets.sql: what attempts may cost, of jobs that limit it
SET LOCAL lock_timeout = '4s';
ALTER TABLE watch
    ADD COLUMN max_cost          numeric,
    ADD COLUMN grace_seconds     double precision NOT NULL DEFAULT 0,
    ADD COLUMN is_budget_reached boolean          NOT NULL DEFAULT false;

CREATE INDEX watch_limited ON watch (job_id, attempt) WHERE NOT is_over AND max_cost IS NOT NULL;
