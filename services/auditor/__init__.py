"""Hashes every record of every audited topic into a chain and signs how far it has read."""
