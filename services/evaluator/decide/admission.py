"""Whether a suite has enough rows for the gate to decide by it."""

from services.evaluator.gates.benchmark import DEFAULT_MARGIN_POINTS
from services.evaluator.gates.sizes import (
    MIN_BENCHMARK_ITEMS,
    MIN_BENIGN_PROMPTS,
    MIN_HARMFUL_PROMPTS,
    half_width_points,
    smallest_margin_points,
)
from services.evaluator.model import Suite

MIN_DECLARED_ITEMS = 20
"""Of a benchmark that declares its margin; fewer tell nothing that anyone would call a margin."""


def find_shortage(suite: Suite) -> str | None:
    """What the suite lacks; None where it has enough rows."""
    if suite.kind is None:
        needed = MIN_BENIGN_PROMPTS if suite.expects == "answer" else MIN_HARMFUL_PROMPTS
        return _fewer(suite.rows, needed, "prompts")
    if suite.margin_points is None:
        return _without_margin(suite.rows)
    if shortage := _fewer(suite.rows, max(MIN_DECLARED_ITEMS, suite.num_fewshot + 1), "rows"):
        return shortage
    if suite.margin_points < half_width_points(suite.rows):
        smallest = smallest_margin_points(suite.rows)
        return f"{suite.rows} rows tell a margin of {smallest} points or more, found {suite.margin_points}"
    return None


def _without_margin(rows: int) -> str | None:
    """A suite too small for the default margin has to say which one it can tell."""
    shortage = _fewer(rows, MIN_BENCHMARK_ITEMS, f"rows for a margin of {DEFAULT_MARGIN_POINTS:g} points")
    if shortage is None or rows < MIN_DECLARED_ITEMS:
        return shortage
    return f"{shortage}; so many tell margin_points of {smallest_margin_points(rows)}, which it may declare"


def _fewer(rows: int, needed: int, what: str) -> str | None:
    return f"{rows} rows, expected at least {needed} {what}" if rows < needed else None
