"""One runner per node: Kafka and its job's part of S3 on one side, the training child on the other."""
