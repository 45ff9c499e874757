"""Library code with no domain in it, which imports schemas but never services."""
