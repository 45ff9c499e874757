"""What becomes of the records: counted, kept in a file, or sent to the topic that they came from."""

import base64
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any, Protocol

from ops.connection import OPERATOR
from ops.errors import RefusedByPlatform
from ops.replay.selection import Selection
from schemas.topics import TOPICS
from shared.messaging.delivery import Delivery, Unreadable, read, topic_named
from shared.messaging.login import Login
from shared.messaging.reader import Resend, resending
from shared.messaging.retention import inbox_kept
from shared.record import Record
from shared.settings import Timing

DRY_RUN, STDOUT = "dry-run", "-"
MARGIN = timedelta(days=1)


class Target(Protocol):
    outcome: str
    """What was done with them, for people."""

    async def take(self, record: Record) -> None: ...


@dataclass
class Counting:
    """Per topic and type: how many, the first and the last time."""

    outcome: str = "counted, nothing done with them"
    counts: dict[tuple[str, str], list[int]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(count for count, _, _ in self.counts.values())

    async def take(self, record: Record) -> None:
        known = self.counts.setdefault(_kind(record), [0, record.timestamp_ms, record.timestamp_ms])
        known[0] += 1
        known[1] = min(known[1], record.timestamp_ms)
        known[2] = max(known[2], record.timestamp_ms)

    def rows(self) -> list[tuple[str, str, int, str, str]]:
        return [
            (topic, kind, count, _time(first), _time(last))
            for (topic, kind), (count, first, last) in sorted(self.counts.items())
        ]


def _kind(record: Record) -> tuple[str, str]:
    delivery = read(record)
    kind = delivery.message.type if isinstance(delivery, Delivery) else f"unreadable ({delivery.reason})"
    return record.topic, kind


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


@dataclass
class FileSink:
    """One JSON object a line; see docs/runbooks/replay.md."""

    file: IO[str]
    outcome: str

    async def take(self, record: Record) -> None:
        self.file.write(json.dumps(line(record), ensure_ascii=False) + "\n")


def line(record: Record) -> dict[str, Any]:
    """Everything that the record is, bytes in base64; and below `event` what it says, if it can be read."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key_base64": _text(record.key),
        "headers": [[name, _text(value)] for name, value in record.headers],
        "value_base64": _text(record.value),
        **_event_fields(read(record)),
    }


def record_of(kept: dict[str, Any]) -> Record:
    """The record that `line` was made from."""
    headers = tuple((name, _bytes(value)) for name, value in kept["headers"])
    key, value = _bytes(kept["key_base64"]), _bytes(kept["value_base64"])
    location = kept["topic"], kept["partition"], kept["offset"]
    return Record(*location, key, headers, value, kept["timestamp_ms"])


def _event_fields(delivery: Delivery | Unreadable) -> dict[str, Any]:
    if isinstance(delivery, Unreadable):
        return {"unreadable": f"{delivery.reason}: {delivery.detail}"}
    envelope = delivery.envelope
    return {
        "event": {
            "id": envelope.id,
            "type": envelope.ce_type,
            "time": envelope.time.isoformat(),
            "key": envelope.key,
            "sequence": envelope.sequence,
            "data": delivery.message.model_dump(mode="json"),
        }
    }


def _text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


@dataclass
class Sending:
    """Sends the records with the ids that they have: whoever applied one has it in its inbox and does nothing."""

    resend: Resend
    outcome: str

    async def take(self, record: Record) -> None:
        await self.resend(record)


def admit(record: Record, *, now: datetime) -> None:
    """Raises RefusedByPlatform where sending it again might have an effect a second time, or none but harm."""
    delivery = read(record)
    if isinstance(delivery, Unreadable):
        raise RefusedByPlatform(
            f"{record.location} is unreadable ({delivery.reason}: {delivery.detail}) and would only be parked again; "
            "narrow the bounds"
        )
    keeps = inbox_kept(record.topic, Timing())
    if record.timestamp_ms < (now - keeps + MARGIN).timestamp() * 1000:
        raise RefusedByPlatform(
            f"{record.location} is of {_time(record.timestamp_ms)}; inboxes know what was applied for {keeps.days} "
            "days only, so it might be applied again; narrow the bounds"
        )


def sends_to_topic(to: str) -> bool:
    return to in {topic.name for topic in TOPICS} or to.startswith("tenant.")


def require_sendable(to: str, selection: Selection) -> None:
    """Raises RefusedByPlatform unless the operator may write the topic and the records came from it."""
    topic = topic_named(to)
    if OPERATOR not in topic.writers:
        raise RefusedByPlatform(
            f"{to} is written by {', '.join(topic.writers)} alone; {_instead(to, topic.writers)}"
        )
    if foreign := [name for name in selection.topics if name != to]:
        raise RefusedByPlatform(
            f"{to}: found records of {foreign[0]}, expected of {to}: types have one topic each"
        )


def _instead(to: str, writers: tuple[str, ...]) -> str:
    may = ", ".join(topic.name for topic in TOPICS if OPERATOR in topic.writers)
    if topic_named(to).is_event_stream:
        repair = f"retune relay republish --service {writers[0]} --topic {to} --since …"
        return f"what is missing there is sent again by its relay: `{repair}`"
    return f"the operator may write {may}"


@asynccontextmanager
async def opened(to: str, login: Login) -> AsyncIterator[Target]:
    if to == DRY_RUN:
        yield Counting()
    elif sends_to_topic(to):
        async with resending(login, to) as resend:
            yield Sending(resend, f"sent to {to} again, with their ids")
    elif to == STDOUT:
        yield FileSink(sys.stdout, "printed")
    else:
        with _new_file(Path(to)) as file:
            yield FileSink(file, f"kept in {to}")


def _new_file(path: Path) -> IO[str]:
    try:
        return path.open("x")
    except OSError as error:
        raise RefusedByPlatform(f"--to: {error}; found neither a topic nor a place for a new file") from error
