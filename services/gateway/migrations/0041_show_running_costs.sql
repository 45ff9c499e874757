-- 0041_show_running_costs.sql: what the nodes cost that a job holds, and since when it does
SET LOCAL lock_timeout = '4s';
ALTER TABLE job
    ADD COLUMN price_per_hour numeric,
    ADD COLUMN held_since     timestamptz;
