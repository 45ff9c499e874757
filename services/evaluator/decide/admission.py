"""Whether a suite has enough rows for the gate to decide by it."""

from collections.abc import Mapping

from schemas.evaluation import BenchmarkKind
from services.evaluator.gates.benchmark import DEFAULT_MARGIN_POINTS
from services.evaluator.gates.sizes import (
    MIN_BENCHMARK_ITEMS,
    MIN_BENIGN_PROMPTS,
    MIN_HARMFUL_PROMPTS,
    half_width_points,
    smallest_margin_points,
)
from services.evaluator.model import Suite

OWN_ROWS = BenchmarkKind.MULTIPLE_CHOICE
"""Kind of benchmark that may take its examples from the rows that it asks."""
WITHOUT_EXAMPLES = frozenset({BenchmarkKind.TEXT, BenchmarkKind.TRUTHFULQA_MC1, BenchmarkKind.TRUTHFULQA_MC2})
"""Kinds of benchmark without examples: text has nothing to show by example; TruthfulQA's prompt has its own."""
MIN_DECLARED_ITEMS = 20
"""Least number of rows of a benchmark that declares its margin; fewer show nothing that one would call a margin."""


def find_shortage(suite: Suite) -> str | None:
    """Return what the suite lacks; None where it has enough rows."""
    if suite.kind is None:
        needed = MIN_BENIGN_PROMPTS if suite.expects == "answer" else MIN_HARMFUL_PROMPTS
        return _fewer(suite.rows, needed, "prompts")
    if suite.margin_points is None:
        return _without_margin(suite.rows)
    if shortage := _fewer(suite.rows, max(MIN_DECLARED_ITEMS, suite.num_fewshot + 1), "rows"):
        return shortage
    if suite.margin_points < half_width_points(suite.rows):
        smallest = smallest_margin_points(suite.rows)
        return f"{suite.rows} rows show a margin of {smallest} points or more, found {suite.margin_points}"
    return None


def find_example_problem(
    suite: Suite, subjects: Mapping[str, int], examples: Mapping[str, int]
) -> str | None:
    """Return what is wrong with the few-shot examples; both mappings count rows by subject, which may be empty."""
    if not suite.num_fewshot:
        return "examples and num_fewshot 0, expected at least 1" if suite.examples is not None else None
    asked = f"{suite.kind} with {suite.num_fewshot} few-shot examples"
    if suite.kind in WITHOUT_EXAMPLES:
        return f"{asked}, expected 0: its prompt takes none"
    if suite.examples is None:
        expected = "expected a file of examples: they are of a split that is not asked"
        return None if suite.kind is OWN_ROWS else f"{asked}, {expected}"
    if suite.examples.sha256 == suite.file.sha256:
        return f"{asked} from the very rows that are asked, expected those of another split"
    for subject in sorted(subjects):
        if shortage := _fewer(examples.get(subject, 0), suite.num_fewshot, "examples"):
            return f"{suite.examples.file_id}: {subject or 'it'} has {shortage}"
    return None


def _without_margin(rows: int) -> str | None:
    """Return what a suite without a margin lacks: too small for the default one, it has to declare its own."""
    shortage = _fewer(rows, MIN_BENCHMARK_ITEMS, f"rows for a margin of {DEFAULT_MARGIN_POINTS:g} points")
    if shortage is None or rows < MIN_DECLARED_ITEMS:
        return shortage
    return f"{shortage}; so many show margin_points of {smallest_margin_points(rows)}, which it may declare"


def _fewer(rows: int, needed: int, what: str) -> str | None:
    return f"{rows} rows, expected at least {needed} {what}" if rows < needed else None
