-- 0009_measure_router_loss.sql: how unevenly experts are used, of models that have them and train all weights
SET LOCAL lock_timeout = '4s';
ALTER TABLE step ADD COLUMN router_loss double precision;
