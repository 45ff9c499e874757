-- 0014_keep_files_of_suites_and_evaluations.sql: suites' files are the operator's, and a model's later evaluation
-- reads its holdout as the first one did
SET LOCAL lock_timeout = '4s';
-- The operator is no tenant: no API key opens files of ''.
UPDATE file SET tenant = '' WHERE purpose IN ('benchmark', 'safety-suite');

CREATE INDEX evaluation_running ON evaluation (eval_id) INCLUDE (job_id) WHERE outcome = 'running';

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
    SELECT file.tenant, suite.sha256,
           CASE WHEN suite.is_benchmark THEN 'benchmark ' ELSE 'safety suite ' END || suite.name
      FROM suite LEFT JOIN file ON file.file_id = suite.file_id
 UNION ALL
    SELECT file.tenant, suite.examples_sha256, 'benchmark ' || suite.name
      FROM suite LEFT JOIN file ON file.file_id = suite.examples_file_id
     WHERE suite.examples_sha256 IS NOT NULL;
