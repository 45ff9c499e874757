"""What a handler gets in place of `shared.messaging.unit.Unit`: the same calls, applied at the commit."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING

from pydantic import BaseModel

import shared.record
from schemas.base import Message
from schemas.envelope import Origin
from schemas.topics import Topic, topic_of
from shared.messaging.unit import Task
from tests.simulation.log import Record
from tests.simulation.tables import Tables

if TYPE_CHECKING:
    from tests.simulation.kernel import Kernel


UNSIGNED = shared.record.Record("", 0, 0, None, (), None)


@cache
def topic_for(message: type[Message], writer: str) -> Topic:
    return topic_of(message, writer=writer)


class Unit:
    __slots__ = (
        "cancelled_tasks", "conn", "correlation_id", "envelope", "events", "now", "parents", "shared", "tasks", "timers", "topic",
    )  # fmt: skip

    def __init__(self, kernel: "Kernel", now: datetime, envelope: Record | None = None) -> None:
        self.conn: Tables = kernel.tables
        self.shared: None = None
        self.now = now
        self.envelope = envelope
        self.topic = envelope.topic.name if envelope else ""
        self.correlation_id = (envelope.correlation_id or envelope.id) if envelope else ""
        self.events: list[Message] = []
        self.timers: list[tuple[BaseModel, datetime]] = []
        self.tasks: list[Task] = []
        self.cancelled_tasks: list[tuple[str, str]] = []
        self.parents: list[str] = []

    @property
    def record(self) -> shared.record.Record:
        """Its log has no bytes, so nobody signs there, and the engine gives no keys."""
        assert self.envelope is not None, "a record comes with an envelope"
        return UNSIGNED

    @property
    def origin(self) -> Origin:
        return Origin(self.correlation_id, "")

    async def emit(self, *messages: Message, origin: Origin | None = None) -> list[str]:
        self.events += messages
        return []

    async def afterwards(self, function: Callable[["Unit"], Awaitable[bool]]) -> None:
        await function(self)

    async def set_timer(self, payload: BaseModel, *, at: datetime) -> None:
        self.timers.append((payload, at))

    async def start_task(self, task: Task) -> None:
        self.tasks.append(task)

    async def cancel_task(self, kind: type[Task], key: str) -> None:
        self.cancelled_tasks.append((kind.__name__, key))

    async def release(self, parent: str) -> None:
        self.parents.append(parent)
