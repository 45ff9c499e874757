-- 0033_show_reasons_of_recipes.sql: why each number is what it is that a job's recipe left open
SET LOCAL lock_timeout = '4s';
ALTER TABLE job ADD COLUMN recipe_reasons jsonb NOT NULL DEFAULT '{}';
