-- 0010_show_what_is_charged.sql: a job's cost is what its tenant pays; what nobody is charged for stands beside it
ALTER TABLE job ADD COLUMN uncharged_cost numeric(18, 6) NOT NULL DEFAULT 0;
