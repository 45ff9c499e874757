-- 0013_keep_suite_examples.sql: a benchmark's examples may be a file of their own
ALTER TABLE suite ADD COLUMN examples_file_id text, ADD COLUMN examples_sha256 text;
CREATE INDEX suite_of_examples ON suite (examples_sha256);
