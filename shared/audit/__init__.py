"""The hash chain over a partition's records, and the signature under what was read."""
