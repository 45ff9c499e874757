"""The `retune` command line: arguments, calls over HTTP, Kafka or `ops`, output."""
