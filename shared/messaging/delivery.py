"""From the bytes of a record to a typed message. Total: nothing raises, nothing is dropped."""

from dataclasses import dataclass

from pydantic import ValidationError

from schemas.base import Message
from schemas.envelope import MAX_NAME_BYTES, Envelope, MalformedEnvelope, from_headers
from schemas.topics import TOPICS, Topic, message_type, tenant_commands
from schemas.upcasters import upcast
from shared.nesting import shallow_json

MAX_VALUE_BYTES = 256 * 1024
MAX_DETAIL_CHARACTERS = 1000
_TOPICS = {topic.name: topic for topic in TOPICS}


@dataclass(frozen=True)
class Record:
    """A record of the log, as it came."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    value: bytes | None
    timestamp_ms: int = -1
    """Milliseconds since 1970, of the producer's clock; -1 where it was not kept."""

    @property
    def place(self) -> str:
        return f"{self.topic}/{self.partition}@{self.offset}"


@dataclass(frozen=True)
class Delivery:
    """A record that was understood."""

    record: Record
    topic: Topic
    envelope: Envelope
    message: Message


@dataclass(frozen=True)
class Unreadable:
    """A record that was not; it is parked with this reason."""

    record: Record
    reason: str
    detail: str
    aggregate_id: str
    event_id: str
    sequence: int | None = None


def topic_named(name: str) -> Topic:
    """The declared topic; `tenant.<t>.commands` is made from its pattern. Raises KeyError."""
    parts = name.split(".")
    if len(parts) == 3 and (parts[0], parts[2]) == ("tenant", "commands"):
        return tenant_commands(parts[1])
    return _TOPICS[name]


def read(record: Record) -> Delivery | Unreadable:
    """Decode headers, type and payload; the first thing wrong decides the reason."""
    try:
        envelope = from_headers(record.headers, key=record.key)
    except MalformedEnvelope as error:
        return _unreadable(record, None, "bad_envelope", str(error))
    topic = topic_named(record.topic)
    message = message_type(topic, envelope.type)
    if message is None:
        return _unreadable(record, envelope, "unknown_type", f"{topic.name} carries no {envelope.ce_type}")
    if envelope.version > message.version:
        known = f"known is version {message.version}"
        return _unreadable(record, envelope, "newer_version", f"found {envelope.ce_type}, {known}")
    if topic.is_story and envelope.sequence is None:
        return _unreadable(record, envelope, "bad_envelope", f"{topic.name} needs the header ce_sequence")
    return _read_payload(record, topic, envelope, message)


def _read_payload(
    record: Record, topic: Topic, envelope: Envelope, message: type[Message]
) -> Delivery | Unreadable:
    value = record.value or b""
    if len(value) > MAX_VALUE_BYTES:
        return _unreadable(
            record, envelope, "too_large", f"found {len(value)} bytes, at most {MAX_VALUE_BYTES} are read"
        )
    try:
        payload = shallow_json(value, parse_constant=_refuse_constant)
        has_nul = _has_nul(payload)
    except ValueError as error:
        return _unreadable(record, envelope, "bad_json", f"{type(error).__name__}: {error}")
    if not isinstance(payload, dict):
        found = type(payload).__name__
        return _unreadable(record, envelope, "bad_payload", f"found a JSON {found}, expected an object")
    if has_nul:
        return _unreadable(record, envelope, "bad_payload", "found the character U+0000, which no text has")
    try:
        payload = upcast(envelope.type, envelope.version, payload, to=message.version)
        typed = message.model_validate(payload)
    except (ValidationError, KeyError, TypeError) as error:
        return _unreadable(record, envelope, "bad_payload", _in_one_line(error))
    if typed.key != envelope.key:
        detail = f"record key is {envelope.key!r}, {message.keyed_by} is {typed.key!r}"
        return _unreadable(record, envelope, "wrong_key", detail)
    return Delivery(record, topic, envelope, typed)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"found {name}, which is no JSON")


def _has_nul(value: object) -> bool:
    """Postgres stores no such text, so no handler could."""
    match value:
        case str():
            return "\0" in value
        case dict():
            return any(_has_nul(name) or _has_nul(field) for name, field in value.items())
        case list():
            return any(map(_has_nul, value))
    return False


def _unreadable(record: Record, envelope: Envelope | None, reason: str, detail: str) -> Unreadable:
    key = (record.key or b"")[:MAX_NAME_BYTES].decode("utf-8", "replace").replace("\0", "\ufffd")
    if envelope is None:
        return Unreadable(record, reason, storable(detail), key, record.place)
    return Unreadable(record, reason, storable(detail), key, envelope.id, envelope.sequence)


def storable(detail: str) -> str:
    """Text that Postgres takes: no U+0000, no half of a surrogate pair, and not endless."""
    text = detail[:MAX_DETAIL_CHARACTERS].replace("\0", "\ufffd")
    return text.encode("utf-8", "replace").decode()


def _in_one_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"{where}: {first['msg']}, found {str(first['input'])[:80]!r}"
    return f"{type(error).__name__}: {error}"
