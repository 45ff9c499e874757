-- NULL: registered without a template that marks the answers in training.
SET LOCAL lock_timeout = '4s';
ALTER TABLE base_version ADD COLUMN training_template_sha256 text;
