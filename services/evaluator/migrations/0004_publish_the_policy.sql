-- 0004_publish_the_policy.sql: what was last published of this evaluator's settings
CREATE TABLE policy (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    body      jsonb NOT NULL
);
