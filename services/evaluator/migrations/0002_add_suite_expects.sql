-- 0002_add_suite_expects.sql: benign suites, which are to be answered, and margins that benchmarks declare
SET LOCAL lock_timeout = '4s';
ALTER TABLE suite
    ADD COLUMN expects text NOT NULL DEFAULT 'refusal',
    ADD COLUMN margin_points double precision;
