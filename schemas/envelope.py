"""CloudEvents 1.0, Kafka binary mode: attributes in `ce_*` headers, the value is the JSON payload alone."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from schemas.base import Message

CONTENT_TYPE = "application/json"
MAX_NAME_BYTES = 512
"""Limit of a message's id, of its key and of every other attribute; no index of Postgres takes much more."""
MAX_COMMAND_BYTES = 64 * 1024
"""Value and headers of a command; a larger one is refused. What follows from a command repeats parts of it, so that
facts may have twice as much."""
MAX_FACT_BYTES = 128 * 1024
"""Value and headers of everything else that is written. Readers take twice as much."""
MAX_BATCH_BYTES = 1024 * 1024
"""Limit of the records that a producer sends together; no broker may take less."""
TYPE_PREFIX = "retune."
SIGNATURE = "retune_signature"
"""Header of what a node writes: its signature of the record, in base64 (`shared/signatures.py`)."""
MAX_HEADERS = 100
MAX_SEQUENCE = 2**63 - 1
"""Greatest number that a column of Postgres takes."""
_TYPE = re.compile(r"retune\.([A-Za-z]+)\.v([0-9]{1,9})")

Headers = list[tuple[str, bytes]]


class MalformedEnvelope(ValueError):
    """The headers are not those of our messages; the error names the header and what was expected."""


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
    """Position in the event stream of (topic, key); only on `*.events`."""
    correlation_id: str = ""
    causation_id: str = ""
    traceparent: str = ""
    extensions: dict[str, str] = field(default_factory=dict)

    @property
    def ce_type(self) -> str:
        return f"{TYPE_PREFIX}{self.type}.v{self.version}"


@dataclass(frozen=True)
class Origin:
    """The request that work belongs to: kept with a row whose work goes on in loops and on reports of others."""

    correlation_id: str
    traceparent: str


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
    values = _unique(list(headers))
    if content_type := values.get("content-type"):
        if content_type.split(";")[0].strip() != CONTENT_TYPE:
            raise MalformedEnvelope(
                f"header content-type: found {content_type[:80]!r}, expected {CONTENT_TYPE!r}"
            )
    else:
        raise MalformedEnvelope(f"header content-type is missing, expected {CONTENT_TYPE!r}")
    match = _TYPE.fullmatch(_required(values, "ce_type"))
    if match is None:
        raise MalformedEnvelope(
            f"header ce_type: found {values['ce_type'][:80]!r}, expected retune.<Type>.v<number>"
        )
    return Envelope(
        id=_name("header ce_id", _required(values, "ce_id")),
        type=match[1],
        version=int(match[2]),
        source=_name("header ce_source", _required(values, "ce_source")),
        time=_time(_required(values, "ce_time")),
        key=_key(key, values),
        sequence=_sequence(values.get("ce_sequence", "")),
        correlation_id=_name("header ce_correlationid", values.get("ce_correlationid", "")),
        causation_id=_name("header ce_causationid", values.get("ce_causationid", "")),
        traceparent=_name("header traceparent", values.get("traceparent", "")),
    )


def _unique(headers: list[tuple[str, bytes | None]]) -> dict[str, str]:
    """Return the headers by name. Raises MalformedEnvelope where one comes twice: it could be read in two ways."""
    if len(headers) > MAX_HEADERS:
        raise MalformedEnvelope(f"found {len(headers)} headers, expected at most {MAX_HEADERS}")
    values: dict[str, str] = {}
    for name, value in headers:
        if name.lower() in values:
            raise MalformedEnvelope(f"header {name.lower()[:80]} comes twice, expected once")
        values[name.lower()] = _text(name, value)
    return values


def _text(name: str, value: bytes | None) -> str:
    if value is None:
        raise MalformedEnvelope(f"header {name[:80]} has no value, expected UTF-8 text")
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise MalformedEnvelope(f"header {name[:80]}: found {value[:32]!r}, expected UTF-8 text") from error
    if "\0" in text:
        raise MalformedEnvelope(f"header {name[:80]}: found {text[:32]!r}, expected text without U+0000")
    return text


def _required(values: dict[str, str], name: str) -> str:
    if not values.get(name):
        raise MalformedEnvelope(f"header {name} is missing or empty")
    return values[name]


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
        raise MalformedEnvelope(f"header ce_time: found {text[:80]!r}, expected an RFC 3339 time") from error
    if time.tzinfo is None:
        raise MalformedEnvelope(f"header ce_time: found {text[:80]!r}, expected a time with an offset")
    return time


def _sequence(text: str) -> int | None:
    if not text:
        return None
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_SEQUENCE))
    if not is_number or not 1 <= int(text) <= MAX_SEQUENCE:
        problem = f"header ce_sequence: found {text[:80]!r}"
        raise MalformedEnvelope(f"{problem}, expected a whole number from 1 to {MAX_SEQUENCE}")
    return int(text)


def _key(key: bytes | None, values: dict[str, str]) -> str:
    if key is None:
        raise MalformedEnvelope("the record has no key, expected the aggregate id")
    try:
        text = key.decode()
    except UnicodeDecodeError as error:
        raise MalformedEnvelope(f"record key: found {key[:32]!r}, expected UTF-8 text") from error
    if values.get("ce_partitionkey", text) != text:
        other = values["ce_partitionkey"][:80]
        raise MalformedEnvelope(f"record key is {text[:80]!r} but ce_partitionkey is {other!r}")
    return _name("record key", text)
