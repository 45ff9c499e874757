-- 0010_rename_stages_of_the_gate.sql: the gate's parts are checks, and each compares numbers by criteria; a stage is a version's
SET LOCAL lock_timeout = '4s';
ALTER TABLE evaluation RENAME COLUMN stages TO checks;
UPDATE evaluation
   SET checks = replace(replace(checks::text, '"checks": ', '"criteria": '), '"stage": ', '"check": ')::jsonb
 WHERE checks <> '[]';
UPDATE verdict
   SET result = replace(replace(replace(replace(replace(result::text,
           '"checks": ', '"criteria": '),
           '"stages": ', '"checks": '),
           '"stage": ', '"check": '),
           '"required_stages": ', '"required_checks": '),
           '"is_held_against_rows": ', '"is_checked_against_rows": ')::jsonb;
-- It is published again, in the new words.
DELETE FROM policy;
