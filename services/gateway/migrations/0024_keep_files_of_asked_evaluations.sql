-- 0024_keep_files_of_asked_evaluations.sql: a holdout stays from the request for an evaluation on, not from its start
SET LOCAL lock_timeout = '4s';
-- Evaluations that were asked for and that the evaluator has neither begun nor refused.
CREATE TABLE asked_evaluation (
    command_id text PRIMARY KEY,
    model_id   text        NOT NULL,
    job_id     text        NOT NULL,
    asked_at   timestamptz NOT NULL
);
CREATE INDEX asked_evaluation_since ON asked_evaluation (asked_at);

CREATE OR REPLACE VIEW needed_bytes (tenant, sha256, needed_by) AS
    SELECT dataset.tenant, named.sha256, 'dataset ' || dataset.dataset_id
      FROM dataset CROSS JOIN LATERAL unnest(dataset.files) AS named (sha256)
     WHERE dataset.state = 'validating'
 UNION ALL
    SELECT tenant, spec -> 'holdout' ->> 'sha256', 'job ' || job_id
      FROM job WHERE phase NOT IN ('succeeded', 'failed', 'cancelled')
 UNION ALL
    SELECT job.tenant, job.spec -> 'holdout' ->> 'sha256', 'evaluation ' || evaluation.eval_id
      FROM evaluation JOIN job ON job.job_id = evaluation.job_id
     WHERE evaluation.outcome = 'running' AND job.phase IN ('succeeded', 'failed', 'cancelled')
 UNION ALL
    SELECT job.tenant, job.spec -> 'holdout' ->> 'sha256', 'evaluation of ' || asked_evaluation.model_id
      FROM asked_evaluation JOIN job ON job.job_id = asked_evaluation.job_id
     WHERE job.phase IN ('succeeded', 'failed', 'cancelled')
 UNION ALL
    SELECT file.tenant, suite.sha256,
           CASE WHEN suite.is_benchmark THEN 'benchmark ' ELSE 'safety suite ' END || suite.name
      FROM suite LEFT JOIN file ON file.file_id = suite.file_id
 UNION ALL
    SELECT file.tenant, suite.examples_sha256, 'benchmark ' || suite.name
      FROM suite LEFT JOIN file ON file.file_id = suite.examples_file_id
     WHERE suite.examples_sha256 IS NOT NULL;
