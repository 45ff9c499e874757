"""What stops the local stack, in sentences for the person who started it."""

from pathlib import Path

from shared.processes.tail import last_lines

LOG_LINES = 8


class StackError(Exception):
    """The stack did not come up or broke; the sentence says which part and where its log is."""

    exit_code = 1


class AlreadyRunning(StackError):
    """Another supervisor holds this state folder."""


class MissingPart(StackError):
    """The machine lacks something: one line that says what to do."""

    exit_code = 3


def end_of(log: Path) -> str:
    """The end of a log, for an error message that begins with `its log`."""
    lines = last_lines(log, LOG_LINES) or ["(nothing was written)"]
    return "\n    ".join([f"{log} ends:", *lines])
