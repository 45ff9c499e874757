"""parked.commands and parked.<service>: messages set aside for a person."""

from datetime import datetime
from typing import Literal

from schemas.base import Bytes, Count, Message, Reference, Sentence, Sha256


class ReplayParked(Message):
    """Hand a parked message to the handlers again. Obeyed by the service it names."""

    keyed_by = "service"
    service: Reference
    """Service that parked the message."""
    parked_id: Count
    """Number of the parked message in its service."""


class DropParked(Message):
    """Leave a parked message out for good. Obeyed by the service it names."""

    keyed_by = "service"
    service: Reference
    """Service that parked the message."""
    parked_id: Count
    """Number of the parked message in its service."""
    reason: Sentence
    """Why it is left out for good."""


class MessageParked(Message):
    """A message could not be handled; its bytes are kept here and in the service's `parked` table."""

    keyed_by = "service"
    service: str
    """Service that parked the message."""
    parked_id: Count
    """Number of the parked message in its service."""
    reason: str
    """Stable word: `bad_json`, `unknown_type`, `newer_version`, `rejected`, `behind_parked`, `gap`,
    `unreadable_batch`, …"""
    detail: str
    """What the message has, and what was expected."""
    topic: str
    """Topic of the record."""
    partition: Count
    """Partition of the record."""
    offset: Count
    """Place of the record in its partition."""
    aggregate_id: str
    """Key of the record."""
    event_id: str
    """`ce_id`, or the record's location where that cannot be read."""
    value_base64: str
    """The raw value; cut at 64 KiB."""
    parked_at: datetime
    """When it was parked."""
    value_bytes: Bytes | None = None
    """Size of the whole value, which the digest covers too."""
    value_sha256: Sha256 | None = None


class ParkedResolved(Message):
    """A parked message was handled after all or left out for good; or its replay failed, and it is `parked` still."""

    keyed_by = "service"
    service: str
    """Service that parked the message."""
    parked_id: Count
    """Number of the parked message in its service."""
    state: Literal["replayed", "dropped", "parked"]
    """State of the message from now on."""
    reason: str = ""
    """Why it was dropped, or failed again."""
