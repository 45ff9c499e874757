-- 0009_rename_stages_of_the_gate.sql: the gate's parts are checks, and each compares numbers by criteria; a stage is a version's
SET LOCAL lock_timeout = '4s';
UPDATE model_version
   SET verdict = replace(replace(replace(verdict::text,
           '"checks": ', '"criteria": '), '"stages": ', '"checks": '), '"stage": ', '"check": ')::jsonb
 WHERE verdict IS NOT NULL;
