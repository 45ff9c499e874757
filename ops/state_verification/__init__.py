"""A service's state rebuilt from its topics, by its own handlers, in a schema that is thrown away."""

VERIFIABLE = ("scheduler", "tracker")
"""Services whose state follows from their topics and their clock alone."""
