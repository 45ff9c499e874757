-- 0006_add_suite_examples.sql: few-shot examples may come from a file of their own
ALTER TABLE suite ADD COLUMN examples jsonb;
