"""CloudEvents 1.0, Kafka binary mode: attributes in `ce_*` headers, the value is the JSON payload alone."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from schemas.base import Message

CONTENT_TYPE = "application/json"
MAX_NAME_BYTES = 512
"""Of a message's id and of its key; no index of Postgres takes much more."""
TYPE_PREFIX = "retune."
MAX_HEADERS = 100
MAX_SEQUENCE = 2**63 - 1
"""What a column of Postgres takes."""
_TYPE = re.compile(r"retune\.([A-Za-z]+)\.v([0-9]{1,9})")

Headers = list[tuple[str, bytes]]


class MalformedEnvelope(ValueError):
    """The headers are not those of a message of ours; the sentence says which and what was expected."""


@dataclass(frozen=True)
class Envelope:
    """All that is known of a message besides its payload."""

    id: str
    type: str
    version: int
    source: str
    time: datetime
    key: str
    sequence: int | None = None
    """Position in the story of (topic, key); only on `*.events`."""
    correlation_id: str = ""
    causation_id: str = ""
    traceparent: str = ""
    extensions: dict[str, str] = field(default_factory=dict)

    @property
    def ce_type(self) -> str:
        return f"{TYPE_PREFIX}{self.type}.v{self.version}"


def ce_type(message: type[Message]) -> str:
    return f"{TYPE_PREFIX}{message.type}.v{message.version}"


def to_headers(envelope: Envelope) -> Headers:
    attributes = {
        "ce_specversion": "1.0",
        "ce_id": envelope.id,
        "ce_type": envelope.ce_type,
        "ce_source": envelope.source,
        "ce_time": envelope.time.isoformat(),
        "ce_subject": envelope.key,
        "ce_partitionkey": envelope.key,
        "ce_sequence": "" if envelope.sequence is None else str(envelope.sequence),
        "ce_correlationid": envelope.correlation_id,
        "ce_causationid": envelope.causation_id,
        "traceparent": envelope.traceparent,
        "content-type": CONTENT_TYPE,
    }
    return [(name, value.encode()) for name, value in attributes.items() if value]


def from_headers(headers: Iterable[tuple[str, bytes | None]], *, key: bytes | None) -> Envelope:
    """Read an envelope. Raises MalformedEnvelope; never anything else."""
    found = _found(list(headers))
    if content_type := found.get("content-type"):
        if content_type.split(";")[0].strip() != CONTENT_TYPE:
            raise MalformedEnvelope(f"header content-type: found {content_type!r}, expected {CONTENT_TYPE!r}")
    else:
        raise MalformedEnvelope(f"header content-type is missing, expected {CONTENT_TYPE!r}")
    match = _TYPE.fullmatch(_required(found, "ce_type"))
    if match is None:
        raise MalformedEnvelope(
            f"header ce_type: found {found['ce_type'][:80]!r}, expected retune.<Type>.v<number>"
        )
    return Envelope(
        id=_name("header ce_id", _required(found, "ce_id")),
        type=match[1],
        version=int(match[2]),
        source=_required(found, "ce_source"),
        time=_time(_required(found, "ce_time")),
        key=_key(key, found),
        sequence=_sequence(found.get("ce_sequence", "")),
        correlation_id=found.get("ce_correlationid", ""),
        causation_id=found.get("ce_causationid", ""),
        traceparent=found.get("traceparent", ""),
    )


def _found(headers: list[tuple[str, bytes | None]]) -> dict[str, str]:
    """By name. One that comes twice could be read in two ways."""
    if len(headers) > MAX_HEADERS:
        raise MalformedEnvelope(f"found {len(headers)} headers, expected at most {MAX_HEADERS}")
    found: dict[str, str] = {}
    for name, value in headers:
        if name.lower() in found:
            raise MalformedEnvelope(f"header {name.lower()} comes twice, expected once")
        found[name.lower()] = _text(name, value)
    return found


def _text(name: str, value: bytes | None) -> str:
    if value is None:
        raise MalformedEnvelope(f"header {name} has no value, expected UTF-8 text")
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise MalformedEnvelope(f"header {name}: found {value[:32]!r}, expected UTF-8 text") from error
    if "\0" in text:
        raise MalformedEnvelope(f"header {name}: found {text[:32]!r}, expected text without U+0000")
    return text


def _required(found: dict[str, str], name: str) -> str:
    if not found.get(name):
        raise MalformedEnvelope(f"header {name} is missing or empty")
    return found[name]


def _name(where: str, text: str) -> str:
    if "\0" in text:
        raise MalformedEnvelope(f"{where}: found {text[:32]!r}, expected text without U+0000")
    if (size := len(text.encode())) > MAX_NAME_BYTES:
        raise MalformedEnvelope(f"{where}: found {size} bytes, expected at most {MAX_NAME_BYTES}")
    return text


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise MalformedEnvelope(f"header ce_time: found {text!r}, expected an RFC 3339 time") from error
    if time.tzinfo is None:
        raise MalformedEnvelope(f"header ce_time: found {text!r}, expected a time with an offset")
    return time


def _sequence(text: str) -> int | None:
    if not text:
        return None
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_SEQUENCE))
    if not is_number or not 1 <= int(text) <= MAX_SEQUENCE:
        found = f"header ce_sequence: found {text[:80]!r}"
        raise MalformedEnvelope(f"{found}, expected a whole number from 1 to {MAX_SEQUENCE}")
    return int(text)


def _key(key: bytes | None, found: dict[str, str]) -> str:
    if key is None:
        raise MalformedEnvelope("the record has no key, expected the aggregate id")
    try:
        text = key.decode()
    except UnicodeDecodeError as error:
        raise MalformedEnvelope(f"record key: found {key[:32]!r}, expected UTF-8 text") from error
    if found.get("ce_partitionkey", text) != text:
        raise MalformedEnvelope(f"record key is {text!r} but ce_partitionkey is {found['ce_partitionkey']!r}")
    return _name("record key", text)
