-- 0002_know_the_answer_budget.sql: what the evaluator published of the longest answer that its gate takes
CREATE TABLE gate_policy (
    singleton     boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    answer_tokens bigint NOT NULL
);
