-- 0047_know_redone_steps.sql: which attempt did a step first; a later one that resumed before it does it again
SET LOCAL lock_timeout = '4s';
ALTER TABLE step ADD COLUMN first_attempt int;
