CREATE INDEX evaluation_of_model ON evaluation (model_id, created_at);
