-- 0006_measure_preferences.sql: rewards of a step's pairs of answers, of method dpo alone
SET LOCAL lock_timeout = '4s';
ALTER TABLE step
    ADD COLUMN chosen_reward   double precision,
    ADD COLUMN rejected_reward double precision,
    ADD COLUMN reward_margin   double precision,
    ADD COLUMN reward_accuracy double precision;
