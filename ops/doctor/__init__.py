"""Holds what Postgres, the topics and S3 say about a stack against the invariants of its design."""
