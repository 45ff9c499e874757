-- 0028_rename_phase_of_a_job.sql: a job has a state, by the names that the scheduler gives
SET LOCAL lock_timeout = '4s';
ALTER TABLE job RENAME COLUMN phase TO state;
UPDATE job SET state = 'stopping' WHERE state = 'checkpointing';
