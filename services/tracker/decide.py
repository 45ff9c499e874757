"""Pure arithmetic of cost."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal

from schemas.node import AllocatedNode

SECONDS_PER_HOUR = 3600
SMALLEST_USD = Decimal("0.000001")


def node_seconds(nodes: Sequence[AllocatedNode], *, until: datetime) -> float:
    return sum(_seconds(node, until) for node in nodes)


def cost_of(nodes: Sequence[AllocatedNode], *, until: datetime) -> Decimal:
    """US dollars for the time each node was held, to the millionth."""
    total = sum(
        (node.price_per_hour * Decimal(str(_seconds(node, until))) / SECONDS_PER_HOUR for node in nodes),
        Decimal(0),
    )
    return total.quantize(SMALLEST_USD)


def _seconds(node: AllocatedNode, until: datetime) -> float:
    return max(0.0, ((node.released_at or until) - node.allocated_at).total_seconds())
