-- 0009_remove_bytes_of_deleted_files.sql: a deleted file's bytes go once nothing needs them; before, they stayed for ever
ALTER TABLE file ADD COLUMN state text NOT NULL DEFAULT 'uploaded';
ALTER TABLE file ADD COLUMN removed_at timestamptz;
UPDATE file SET state = 'deleting' WHERE deleted_at IS NOT NULL;
CREATE INDEX file_of_bytes ON file (sha256);
CREATE INDEX file_in_transition ON file (state) WHERE state IN ('uploading', 'deleting', 'removing');

-- sha256 of every file that the dataset is made of.
ALTER TABLE dataset ADD COLUMN files text[] NOT NULL DEFAULT '{}';
CREATE INDEX dataset_open ON dataset (tenant) WHERE state = 'validating';
CREATE INDEX job_open ON job (tenant) WHERE phase NOT IN ('succeeded', 'failed', 'cancelled');

-- The file that each registered benchmark and safety suite is read from.
ALTER TABLE suite ADD COLUMN file_id text, ADD COLUMN sha256 text;
CREATE INDEX suite_of_bytes ON suite (sha256);

-- Who still reads which bytes. Ingest reads every file of a dataset, the evaluator a job's holdout and the suites.
CREATE VIEW needed_bytes (tenant, sha256, needed_by) AS
    SELECT dataset.tenant, named.sha256, 'dataset ' || dataset.dataset_id
      FROM dataset CROSS JOIN LATERAL unnest(dataset.files) AS named (sha256)
     WHERE dataset.state = 'validating'
 UNION ALL
    SELECT tenant, spec -> 'holdout' ->> 'sha256', 'job ' || job_id
      FROM job WHERE phase NOT IN ('succeeded', 'failed', 'cancelled')
 UNION ALL
    SELECT file.tenant, suite.sha256,
           CASE WHEN suite.is_benchmark THEN 'benchmark ' ELSE 'safety suite ' END || suite.name
      FROM suite LEFT JOIN file ON file.file_id = suite.file_id;
