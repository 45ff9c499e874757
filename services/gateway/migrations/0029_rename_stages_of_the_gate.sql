-- 0029_rename_stages_of_the_gate.sql: the gate's parts are checks, and each compares numbers by criteria; a stage is a version's
SET LOCAL lock_timeout = '4s';
ALTER TABLE evaluation RENAME COLUMN stages TO checks;
UPDATE evaluation
   SET checks = replace(replace(checks::text, '"checks": ', '"criteria": '), '"stage": ', '"check": ')::jsonb,
       progress = replace(progress::text, '"stage": ', '"activity": ')::jsonb,
       evidence = replace(replace(replace(evidence::text,
           '"required_stages": ', '"required_checks": '),
           '"stage": ', '"check": '),
           '"is_held_against_rows": ', '"is_checked_against_rows": ')::jsonb;
UPDATE gate_policy SET detail = replace(detail::text, '"required_stages": ', '"required_checks": ')::jsonb;
UPDATE job_event
   SET type = replace(type, 'EvalStageCompleted', 'EvalCheckCompleted'),
       data = replace(replace(replace(replace(replace(data::text,
           '"checks": ', '"criteria": '),
           '"stages": ', '"checks": '),
           '"stage": ', '"check": '),
           '"required_stages": ', '"required_checks": '),
           '"is_held_against_rows": ', '"is_checked_against_rows": ')::jsonb
 WHERE type IN ('EvalStageCompleted', 'EvalPassed', 'EvalFailed', 'EvalInconclusive');
