"""The hash chain over a partition's records, and signed statements of how far it was read."""
