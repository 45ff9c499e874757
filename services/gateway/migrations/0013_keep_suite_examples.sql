-- 0013_keep_suite_examples.sql: a benchmark's examples may be a file of their own, needed as long as the benchmark is
ALTER TABLE suite ADD COLUMN examples_file_id text, ADD COLUMN examples_sha256 text;
CREATE INDEX suite_of_examples ON suite (examples_sha256);

CREATE OR REPLACE VIEW needed_bytes (tenant, sha256, needed_by) AS
    SELECT dataset.tenant, named.sha256, 'dataset ' || dataset.dataset_id
      FROM dataset CROSS JOIN LATERAL unnest(dataset.files) AS named (sha256)
     WHERE dataset.state = 'validating'
 UNION ALL
    SELECT tenant, spec -> 'holdout' ->> 'sha256', 'job ' || job_id
      FROM job WHERE phase NOT IN ('succeeded', 'failed', 'cancelled')
 UNION ALL
    SELECT file.tenant, suite.sha256,
           CASE WHEN suite.is_benchmark THEN 'benchmark ' ELSE 'safety suite ' END || suite.name
      FROM suite LEFT JOIN file ON file.file_id = suite.file_id
 UNION ALL
    SELECT file.tenant, suite.examples_sha256, 'benchmark ' || suite.name
      FROM suite LEFT JOIN file ON file.file_id = suite.examples_file_id
     WHERE suite.examples_sha256 IS NOT NULL;
