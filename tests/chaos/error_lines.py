"""What services' logs may say at level `error` while faults strike, and why; everything else is a finding."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from deploy.local.stack import Stack


@dataclass(frozen=True)
class Line:
    service: str
    event: str
    """The name of the event; for a line of a library its logger."""
    text: str
    """The whole line."""

    def __str__(self) -> str:
        return f"{self.service}: {self.text[:1000]}"


@dataclass(frozen=True)
class Expected:
    event: str
    """Or a logger, with those below it."""
    part: str
    """What the line has to contain besides."""
    why: str

    def covers(self, line: Line) -> bool:
        return f"{line.event}.".startswith(f"{self.event}.") and self.part in line.text


EXPECTED = (
    Expected(
        "aiokafka", "", "Kafka was killed, frozen or cut off: the client says so each time and tries again"
    ),
    Expected(
        "asyncio",
        "exception=CancelledError()",
        "a process that was told to stop cancels what it had gathered",
    ),
    Expected(
        "process ends", "ClientUnresponsive", "Kafka's client hung behind a line that was cut: decision 0013"
    ),
    Expected(
        "process ends", "SendFailed", "Kafka took no records although it answered: the relay begins again"
    ),
    Expected(
        "loop failed", "StorageUnavailable", "S3 was killed or erred: the loop comes again in its period"
    ),
    Expected("checkpoint could not be read", "", "S3 was killed or erred: read again after a minute"),
    Expected("checkpoint could not be deleted", "", "S3 was killed or erred: deleted again after a minute"),
    Expected(
        "abandoned parts could not be deleted", "", "S3 was killed or erred: tried again after a minute"
    ),
    Expected("engine does not answer", "No space left on device", "the disk of the nodes was full"),
)


# Ours are JSON; libraries log through Python's own loggers: level, logger, message.
_LINE = re.compile(r"^(?:\{.*|(?:ERROR|CRITICAL) \S+ .*(?:\n(?!\{|[A-Z]+ \S+ ).*)*)", re.MULTILINE)


def error_lines(stack: Stack) -> list[Line]:
    return [
        line
        for name in stack.processes
        for line in lines_of(name, stack.log(name).read_text(errors="replace"))
    ]


def unexpected(lines: Iterable[Line], expected: Iterable[Expected] = EXPECTED) -> list[Line]:
    expected = list(expected)
    return [line for line in lines if not any(each.covers(line) for each in expected)]


def counted(lines: Iterable[Line]) -> Counter[str]:
    return Counter(f"{line.service}: {line.event}" for line in lines)


def lines_of(service: str, text: str) -> Iterable[Line]:
    """A line of a library continues below, with what it is about, until the next one begins."""
    for match in _LINE.finditer(text):
        line = match[0].rstrip()
        if line.startswith("{"):
            if '"level": "error"' in line:
                yield Line(service, json.loads(line)["event"], line)
        else:
            yield Line(service, line.split(maxsplit=2)[1], line)
