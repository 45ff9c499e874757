"""The program of a replica's node: it has no key to Kafka, Postgres or S3."""
