ALTER TABLE evaluation ADD COLUMN progress jsonb;
