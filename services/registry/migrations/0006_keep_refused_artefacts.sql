-- 0006_keep_refused_artefacts.sql: what a job trained and could not be copied may be copied when that is repaired
CREATE TABLE refused_artefact (
    job_id text  PRIMARY KEY,
    tenant text  NOT NULL,
    task   jsonb NOT NULL
);
