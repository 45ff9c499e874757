"""Library code with no domain in it. Imports schemas, never services."""
