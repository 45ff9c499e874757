-- 0014_try_released.sql: who waited for what is known now is found without reading those who wait for something else
SET LOCAL lock_timeout = '4s';
CREATE INDEX waiting_released ON waiting (id) WHERE released;
