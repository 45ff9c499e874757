"""Pure arithmetic of cost, and who pays it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from schemas.base import FREE_OF_CHARGE, FailureClass
from schemas.job import JobCancelled, JobEvaluating, JobFailed, JobPaused, JobRequeued, JobStageCompleted
from schemas.node import AllocatedNode

AN_HOUR = timedelta(hours=1)
MICROSECOND = timedelta(microseconds=1)
SMALLEST_USD = Decimal("0.000001")

AttemptEnded = JobStageCompleted | JobEvaluating | JobPaused | JobRequeued | JobFailed | JobCancelled


@dataclass(frozen=True)
class Ending:
    failure_class: FailureClass | None
    """Class of the failure; None: the attempt completed or was paused."""
    is_charged: bool


def ending_of(fact: AttemptEnded) -> Ending:
    """Return how the job's newest attempt ended, unless an earlier fact has said so."""
    match fact:
        case JobStageCompleted() | JobEvaluating() | JobPaused():
            return Ending(None, is_charged=True)
        case JobCancelled():
            return Ending(FailureClass.CANCELLED, is_charged=True)
        case JobRequeued() | JobFailed():
            return Ending(fact.failure_class, is_charged=fact.failure_class not in FREE_OF_CHARGE)


def node_seconds(nodes: Sequence[AllocatedNode], *, until: datetime) -> float:
    return sum(_seconds(node, until) for node in nodes)


def device_seconds(nodes: Sequence[AllocatedNode], *, until: datetime) -> float:
    """Return the seconds of all devices; a node whose devices are not named has one."""
    return sum(_seconds(node, until) * max(1, len(node.devices)) for node in nodes)


def cost_of(nodes: Sequence[AllocatedNode], *, until: datetime) -> Decimal:
    """Return the US dollars for the time that each node was held, to the millionth."""
    held = ((node.price_per_hour, timedelta(seconds=_seconds(node, until))) for node in nodes)
    total = sum((_exact_price(price, time) for price, time in held), Decimal(0))
    return total.quantize(SMALLEST_USD)


def price_of(price_per_hour: Decimal, time: timedelta) -> Decimal:
    """Return the US dollars for so long, to the millionth; nothing for a time that a clock went back."""
    return _exact_price(price_per_hour, max(timedelta(0), time)).quantize(SMALLEST_USD)


def _exact_price(price_per_hour: Decimal, time: timedelta) -> Decimal:
    return price_per_hour * Decimal(time // MICROSECOND) / (AN_HOUR // MICROSECOND)


def _seconds(node: AllocatedNode, until: datetime) -> float:
    return max(0.0, ((node.released_at or until) - node.allocated_at).total_seconds())
