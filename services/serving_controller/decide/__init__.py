"""Pure decisions of the serving controller."""
