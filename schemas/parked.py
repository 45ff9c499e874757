"""parked.commands and parked.<service>: messages set aside for a person."""

from datetime import datetime
from typing import Literal

from schemas.base import Count, Message


class ReplayParked(Message):
    """Hand a parked message to the handlers again. Obeyed by the service it names."""

    keyed_by = "service"
    service: str
    parked_id: Count


class DropParked(Message):
    keyed_by = "service"
    service: str
    parked_id: Count
    reason: str


class MessageParked(Message):
    """A message could not be handled; its bytes are kept here and in the service's `parked` table."""

    keyed_by = "service"
    service: str
    parked_id: Count
    reason: str
    """Stable word: `bad_json`, `unknown_type`, `newer_version`, `rejected`, `behind_parked`, `gap`, …"""
    detail: str
    topic: str
    partition: Count
    offset: Count
    aggregate_id: str
    event_id: str
    value_base64: str
    """The raw value; cut at 64 KiB (the table has all of it)."""
    parked_at: datetime


class ParkedSettled(Message):
    """A parked message was handled after all or left out for good; or its replay failed, and it is `parked` still."""

    keyed_by = "service"
    service: str
    parked_id: Count
    state: Literal["replayed", "dropped", "parked"]
    reason: str = ""
