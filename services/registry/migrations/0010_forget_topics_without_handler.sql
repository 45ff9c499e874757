-- 0010_forget_topics_without_handler.sql: how far topics were read that had no handler and are read no more; a process of
-- before may add rows until it ends, which nobody reads
DELETE FROM position WHERE topic IN ('training.events', 'checkpoint.events');
