"""The program of an evaluation's node: it has no key to Kafka, Postgres or S3."""
