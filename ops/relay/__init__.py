"""What services have published: records that a topic lost, and rows that Kafka refused."""
