"""Pure decisions of the registry."""
