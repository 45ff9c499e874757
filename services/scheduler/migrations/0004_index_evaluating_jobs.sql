CREATE INDEX job_evaluating ON job (tenant) WHERE state = 'evaluating';
