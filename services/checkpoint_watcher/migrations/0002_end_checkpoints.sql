SET LOCAL lock_timeout = '4s';
CREATE INDEX checkpoint_expired ON checkpoint (written_at) WHERE state = 'expired';
