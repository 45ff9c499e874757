-- 0003_number_evaluations.sql: verdicts of one job are on different keys, so a number says which is the newer one
ALTER TABLE evaluation ADD COLUMN number int NOT NULL DEFAULT 0;

UPDATE evaluation SET number = numbered.number
  FROM (SELECT eval_id, row_number() OVER (PARTITION BY job_id ORDER BY created_at, eval_id) AS number
          FROM evaluation) AS numbered
 WHERE evaluation.eval_id = numbered.eval_id;
