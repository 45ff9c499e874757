"""The message kernel: one message, one transaction; facts leave through the outbox."""
