"""What the simulation raises when something that must hold does not."""


class Violation(BaseException):
    """With the end of the history. No `except Exception` of a handler, a task or a loop may swallow it."""
