"""The outbox of one service and its relay, which may die before a batch is published, within it or after."""

from typing import TYPE_CHECKING

from schemas.base import Message
from schemas.topics import Topic
from tests.simulation.log import Record
from tests.simulation.unit import Unit

if TYPE_CHECKING:
    from tests.simulation.kernel import Kernel


class Outbox:
    def __init__(self, kernel: "Kernel") -> None:
        self._kernel = kernel
        self._sequences: dict[tuple[str, str], int] = {}
        self.rows: list[Record] = []
        """Committed, not marked as published."""
        self._is_awake = False
        self._last_id = 0

    def add(self, message: Message, topic: Topic, unit: Unit) -> None:
        self._last_id += 1
        event_id, key, sequence = f"{self._kernel.name}-{self._last_id}", message.key, None
        if topic.is_event_stream:
            sequence = self._sequences[topic.name, key] = self._sequences.get((topic.name, key), 0) + 1
        correlation = unit.correlation_id or event_id
        record = Record(
            event_id,
            topic,
            key,
            message.type,
            message,
            sequence,
            correlation,
            writer=self._kernel.name,
            time=self._kernel.clock.utc,
        )
        self.rows.append(record)
        self.wake()

    def wake(self) -> None:
        if self.rows and not self._is_awake:
            self._is_awake = True
            self._kernel.clock.after(self._kernel.world.lag(), self._drain)

    def _drain(self) -> None:
        self._is_awake = False
        kernel = self._kernel
        if not kernel.up or not self.rows:
            return
        if kernel.clock.now < kernel.world.log.away_until:
            self._is_awake = True
            kernel.clock.at(kernel.world.log.away_until, self._drain)
            return
        if kernel.world.faults.active and kernel.crashes("before publishing"):
            if not kernel.switches.marks_after_publishing:
                self.rows = []
            return
        batch = self.rows
        published = len(batch)
        dies = kernel.world.faults.active and kernel.crashes("after publishing")
        if dies:
            published = kernel.rng.randint(1, published)
        for record in batch[:published]:
            kernel.world.log.append(record)
        if not dies:
            self.rows = []
