"""Events for the relays: real messages of the platform, made from a seed."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from schemas.base import CapacityType, Message
from schemas.cost import CostAccrued
from schemas.envelope import Envelope, to_headers
from schemas.node import NodesReleased

NUM_AGGREGATES = 1_000
TIME = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Event:
    event_id: str
    key: str
    sequence: int
    headers: dict[str, str]
    """All but `ce_sequence`."""
    value: bytes

    def all_headers(self) -> list[tuple[str, bytes]]:
        return [
            (name, text.encode())
            for name, text in (self.headers | {"ce_sequence": str(self.sequence)}).items()
        ]


def events(number: int, *, seed: int | str, topic: str = "cost.events") -> Iterator[Event]:
    """Event streams of a thousand aggregates, shuffled into one another; every id is new for every seed."""
    random_ = random.Random(seed)
    prefix = f"{random_.getrandbits(64):016x}"
    sequences = [0] * NUM_AGGREGATES
    make = MESSAGES[topic]
    for index in range(number):
        aggregate = random_.randrange(NUM_AGGREGATES)
        sequences[aggregate] += 1
        message = make(f"{prefix}{aggregate:04d}", sequences[aggregate])
        yield _event(f"{prefix}{index:016x}", message, sequences[aggregate])


def _cost(aggregate: str, sequence: int) -> CostAccrued:
    return CostAccrued(
        job_id=f"job-{aggregate}",
        tenant="acme",
        attempt=1,
        node_seconds=float(sequence),
        cost="0.125",
        total="12.5",
        capacity_type=CapacityType.SPOT,
        until=TIME,
    )


def _release(aggregate: str, sequence: int) -> NodesReleased:
    return NodesReleased(job_id=f"job-{aggregate}", tenant="acme", attempt=1, nodes=())


MESSAGES: dict[str, Callable[[str, int], Message]] = {"cost.events": _cost, "node.events": _release}


def _event(event_id: str, message: Message, sequence: int) -> Event:
    envelope = Envelope(
        id=event_id,
        type=message.type,
        version=message.version,
        source="/retune/bench",
        time=TIME,
        key=message.key,
        correlation_id=event_id,
        causation_id=event_id,
        traceparent=f"00-{event_id}-{event_id[:16]}-01",
    )
    headers = {name: value.decode() for name, value in to_headers(envelope)}
    return Event(event_id, message.key, sequence, headers, message.model_dump_json().encode())
