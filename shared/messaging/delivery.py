"""Reading of a record's bytes as a typed message. `read` is total: it never raises and drops no record."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from pydantic import ValidationError

from schemas.base import CommandRefused, Message
from schemas.envelope import MAX_COMMAND_BYTES, MAX_NAME_BYTES, Envelope, MalformedEnvelope, from_headers
from schemas.topics import TOPICS, Topic, message_type, tenant_commands, tenant_events
from schemas.upcasters import upcast
from shared.errors import Refused, TooLarge
from shared.messaging.batches import UnreadableBatch
from shared.nesting import shallow_json
from shared.record import Record
from shared.text import are_storable, storable

MAX_VALUE_BYTES = 256 * 1024
_TOPICS = {topic.name: topic for topic in TOPICS}
_OF_TENANTS = {"commands": tenant_commands, "events": tenant_events}


@dataclass(frozen=True)
class Delivery:
    """A record that was read as a message."""

    record: Record
    topic: Topic
    envelope: Envelope
    message: Message
    refused: Refused | None = None
    """Why a command is refused without its payload being read; `message` has no fields then."""


@dataclass(frozen=True)
class Unreadable:
    """A record that is parked for this reason, in most cases because it could not be read."""

    record: Record
    reason: str
    detail: str
    aggregate_id: str
    event_id: str
    sequence: int | None = None
    is_message: bool = False
    """Whether the record was read and is parked for another reason; all of it is kept then."""

    @property
    def blocks(self) -> bool:
        """Return whether later messages of the same aggregate wait behind this one."""
        return self.record.topic.endswith(".events")


def topic_named(name: str) -> Topic:
    """Return the declared topic; a tenant's is made from its pattern. Raises KeyError for an unknown name."""
    parts = name.split(".")
    if len(parts) == 3 and parts[0] == "tenant":
        return _OF_TENANTS[parts[2]](parts[1])
    return _TOPICS[name]


def read(record: Record) -> Delivery | Unreadable:
    """Decode headers, type and payload; the first error decides the reason."""
    if isinstance(record.value, UnreadableBatch):
        return _unreadable(record, None, "unreadable_batch", record.value.detail)
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
    if topic.is_event_stream and envelope.sequence is None:
        return _unreadable(record, envelope, "bad_envelope", f"{topic.name} needs the header ce_sequence")
    return _read_payload(record, topic, envelope, message)


def _read_payload(
    record: Record, topic: Topic, envelope: Envelope, message: type[Message]
) -> Delivery | Unreadable:
    value = record.value or b""
    if topic.is_commands and len(value) > MAX_COMMAND_BYTES:
        refused = TooLarge(f"{envelope.type}: found {len(value)} bytes", limit=MAX_COMMAND_BYTES)
        return Delivery(record, topic, envelope, message.model_construct(), refused)
    if len(value) > MAX_VALUE_BYTES:
        return _unreadable(
            record, envelope, "too_large", f"found {len(value)} bytes, at most {MAX_VALUE_BYTES} are read"
        )
    try:
        payload = shallow_json(value, parse_constant=_refuse_constant)
        # Raw, U+0000 is no JSON and half a surrogate pair no UTF-8: only escapes can be either.
        is_storable = b"\\" not in value or are_storable(payload)
    except ValueError as error:
        return _unreadable(record, envelope, "bad_json", f"{type(error).__name__}: {error}")
    if not isinstance(payload, dict):
        kind = type(payload).__name__
        return _unreadable(record, envelope, "bad_payload", f"found a JSON {kind}, expected an object")
    if not is_storable:
        return _unreadable(record, envelope, "bad_payload", "found U+0000 or half a surrogate pair in a text")
    try:
        payload = upcast(envelope.type, envelope.version, payload, to=message.version)
        typed = message.model_validate(payload)
    except (ValidationError, KeyError, TypeError) as error:
        return _unreadable(record, envelope, "bad_payload", _in_one_line(error))
    if typed.key != envelope.key:
        detail = f"record key is {envelope.key!r}, {message.keyed_by} is {typed.key!r}"
        return _unreadable(record, envelope, "wrong_key", detail)
    return Delivery(record, topic, envelope, typed)


def require_obeyed(delivery: Delivery, *, now: datetime) -> None:
    """Raise Refused for a command that must reach no handler: one too large, or older than its topic's retention."""
    if delivery.refused is not None:
        raise delivery.refused
    kept = timedelta(days=delivery.topic.retention_days)
    if delivery.topic.is_commands and _written_ms(delivery) < (now - kept).timestamp() * 1000:
        raise Refused(
            "expired",
            f"{delivery.message.type} of {delivery.envelope.time.isoformat(timespec='minutes')}: commands on "
            f"{delivery.topic.name} are obeyed for {kept.days} days; send it again if it is still wanted",
        )


def _written_ms(delivery: Delivery) -> float:
    """Return the earlier time: the broker bounds how far the record's is ahead; the envelope's may be anything."""
    written, recorded = delivery.envelope.time.timestamp() * 1000, delivery.record.timestamp_ms
    return written if recorded < 0 else min(written, recorded)


def refusal_of(delivery: Delivery, refused: Refused) -> CommandRefused:
    return CommandRefused(
        subject_id=refused.subject_id or delivery.envelope.key,
        command=delivery.message.type,
        command_id=delivery.envelope.id,
        code=refused.code,
        message=storable(refused.message),
        param=refused.param and storable(refused.param),
        tenant=delivery.topic.tenant or getattr(delivery.message, "tenant", None),
    )


def _refuse_constant(name: str) -> None:
    raise ValueError(f"found {name}, which is no JSON")


def _unreadable(record: Record, envelope: Envelope | None, reason: str, detail: str) -> Unreadable:
    key = (record.key or b"")[:MAX_NAME_BYTES].decode("utf-8", "replace").replace("\0", "\ufffd")
    if envelope is None:
        return Unreadable(record, reason, storable(detail), key, record.location)
    return Unreadable(record, reason, storable(detail), key, envelope.id, envelope.sequence)


def _in_one_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"{where}: {first['msg']}, found {str(first['input'])[:80]!r}"
    return f"{type(error).__name__}: {error}"
