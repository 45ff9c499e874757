"""The `retune` command line: commands through HTTP or as its own Kafka user, state through HTTP and topics."""
