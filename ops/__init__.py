"""What operators run against a whole platform: invariants, proof of the topics, records again."""
