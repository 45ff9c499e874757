-- 0014_keep_files_of_suites_and_evaluations.sql: suites' files are the operator's, and a model's later evaluation
-- reads its holdout as the first one did
SET LOCAL lock_timeout = '4s';
-- The operator is no tenant: no API key opens files of ''.
UPDATE file SET tenant = '' WHERE purpose IN ('benchmark', 'safety-suite');

CREATE INDEX evaluation_running ON evaluation (job_id) WHERE outcome = 'running';
-- Added to what the view has already.
DO $$ BEGIN
    EXECUTE 'CREATE OR REPLACE VIEW needed_bytes (tenant, sha256, needed_by) AS '
        || rtrim(pg_get_viewdef('needed_bytes'::regclass), ';') || '
     UNION ALL
        SELECT job.tenant, job.spec -> ''holdout'' ->> ''sha256'', ''evaluation '' || evaluation.eval_id
          FROM evaluation JOIN job ON job.job_id = evaluation.job_id
         WHERE evaluation.outcome = ''running'' AND job.phase IN (''succeeded'', ''failed'', ''cancelled'')';
END $$;
