SET LOCAL lock_timeout = '4s';
CREATE INDEX step_age ON step (time);
