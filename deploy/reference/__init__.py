"""Writes docs/reference from the code: what can be asked for, set, typed, sent and read."""
