"""In which order and at which times the service did what it did, as the topics and its inbox tell.

A message was handled when the events that name it as their cause were emitted; one that caused none, when its row
of the inbox was written. Events without a cause were made by a timer or a loop, at their own time.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from ops.state_verification.difference import Difference
from ops.state_verification.live import Live
from shared.messaging.delivery import Delivery

Own = Mapping[str, Delivery]
"""The service's own events, by their ids."""


@dataclass(frozen=True)
class Step:
    at: datetime
    message: Delivery | None
    """What was handled; None for a timer or a loop."""
    events: tuple[Delivery, ...]
    """What came of it."""


def timeline(heard: Iterable[Delivery], own: Own, live: Live) -> list[Step]:
    caused: dict[str, list[Delivery]] = defaultdict(list)
    uncaused: dict[datetime, list[Delivery]] = defaultdict(list)
    for event in own.values():
        if cause := event.envelope.causation_id:
            caused[cause].append(event)
        else:
            uncaused[event.envelope.time].append(event)
    steps = [Step(at, None, tuple(events)) for at, events in uncaused.items()]
    for message in heard:
        events = tuple(caused.get(message.envelope.id, ()))
        applied_at = live.applied.get((message.topic.name, message.envelope.id))
        if applied_at is not None:
            at = min((event.envelope.time for event in events), default=applied_at)
            steps.append(Step(at, message, events))
    return sorted(steps, key=lambda step: step.at)


def passed_over(
    heard: Iterable[Delivery], live: Live, *, forgotten: Callable[[str], datetime]
) -> Iterator[Difference]:
    """Messages that were read, since later ones of their partition were, and left no trace.

    `forgotten`: of a topic, when what was applied before is forgotten.
    """
    traced: dict[tuple[str, int], int] = {}
    without: list[Delivery] = []
    seen: dict[tuple[str, str, int], str] = {}
    for message in heard:
        record, envelope = message.record, message.envelope
        place = record.topic, record.partition
        stream = record.topic, envelope.key, envelope.sequence or 0
        is_twin = envelope.sequence is not None and seen.setdefault(stream, envelope.id) != envelope.id
        is_applied = (message.topic.name, envelope.id) in live.applied
        if is_applied or (*place, record.offset) in live.kept:
            traced[place] = max(traced.get(place, 0), record.offset)
        elif not is_twin and datetime.fromtimestamp(record.timestamp_ms / 1000, UTC) > forgotten(
            record.topic
        ):
            without.append(message)
    for message in without:
        record = message.record
        if record.offset < traced.get((record.topic, record.partition), 0):
            yield Difference("message", record.place, message.message.type, "no trace of it", "read")
