"""What stops the local stack, in sentences for the person who started it."""

from pathlib import Path


class StackError(Exception):
    """The stack did not come up or broke; the sentence says which part and where its log is."""

    exit_code = 1


class AlreadyRunning(StackError):
    """Another supervisor holds this state folder."""


class MissingPart(StackError):
    """The machine lacks something: one line that says what to do."""

    exit_code = 3


def last_lines(log: Path, count: int = 8) -> str:
    """The end of a log, indented for an error message."""
    if not log.exists():
        return "    (no log was written)"
    lines = log.read_text(errors="replace").splitlines()[-count:]
    return "\n".join(f"    {line}" for line in lines)
