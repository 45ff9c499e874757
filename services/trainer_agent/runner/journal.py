"""What a runner must remember over its own death: one JSON line each, on disk before it is acted on."""

import os
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter


class Entry(BaseModel):
    model_config = ConfigDict(frozen=True)


class Listening(Entry):
    """Where an older release began to read directives in Kafka; nothing follows from it."""

    kind: Literal["listening"] = "listening"
    offset: int


class Reported(Entry):
    """A report that must arrive; after a restart it is sent again under the same id."""

    kind: Literal["reported"] = "reported"
    id: str
    type: str
    time: datetime
    payload: dict[str, object]


class Acknowledged(Entry):
    kind: Literal["acknowledged"] = "acknowledged"
    id: str


class ChildStarted(Entry):
    """The child was started: from here on this node never starts one again."""

    kind: Literal["child_started"] = "child_started"


class LogShipped(Entry):
    """Chunk `number` of the log is bytes [start, end). Written before it is stored, so that it stays the same."""

    kind: Literal["log_shipped"] = "log_shipped"
    number: int
    start: int
    end: int


AnyEntry = Annotated[
    Listening | Reported | Acknowledged | ChildStarted | LogShipped, Field(discriminator="kind")
]
_ENTRY: TypeAdapter[AnyEntry] = TypeAdapter(AnyEntry)


class Journal:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.entries: list[AnyEntry] = _read(path)
        self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def add(self, entry: AnyEntry) -> None:
        os.write(self._handle, entry.model_dump_json().encode() + b"\n")
        os.fsync(self._handle)
        self.entries.append(entry)

    def close(self) -> None:
        os.close(self._handle)

    @property
    def has_started_child(self) -> bool:
        return any(isinstance(entry, ChildStarted) for entry in self.entries)

    @property
    def reports(self) -> list[Reported]:
        return [entry for entry in self.entries if isinstance(entry, Reported)]

    @property
    def unacknowledged(self) -> list[Reported]:
        """Reports that are not acknowledged, in the order in which they were made."""
        arrived = {entry.id for entry in self.entries if isinstance(entry, Acknowledged)}
        return [report for report in self.reports if report.id not in arrived]

    @property
    def last_log_chunk(self) -> LogShipped | None:
        return next((entry for entry in reversed(self.entries) if isinstance(entry, LogShipped)), None)


def _read(path: Path) -> list[AnyEntry]:
    """Return all whole lines, and cut off one that a crash left half written, so that the next is not glued to it."""
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        os.truncate(path, len(whole))
    return [_ENTRY.validate_json(line) for line in whole.splitlines()]
