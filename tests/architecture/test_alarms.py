"""What waits has an end or an alarm: the metrics and invariants that docs name are there."""

import re
from pathlib import Path

import pytest
from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

from ops.doctor.invariants import INVARIANTS
from shared.telemetry import metrics

ROOT = Path(__file__).parents[2]
SECTION = "## What waits, and what ends it\n"
METRIC = re.compile(r"`((?:messages|outbox|tasks|consumer|events|handler|task|jobs?)_[a-z_]+)`")
INVARIANT = re.compile(r"\bI[0-9]+\b")
SUFFIXES = {Counter: ("_total",), Gauge: ("",), Histogram: ("_sum", "_count", "_bucket", "")}


def names() -> set[str]:
    """As `/metrics` has them."""
    known = [value for value in vars(metrics).values() if isinstance(value, MetricWrapperBase)]
    return {each._name + suffix for each in known for suffix in SUFFIXES[type(each)]}


def rows() -> list[list[str]]:
    _, _, section = (ROOT / "docs/reliability.md").read_text().partition(SECTION)
    table, _, _ = section.partition("\n## ")
    lines = [line for line in table.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_what_waits_has_an_end_or_an_alarm_that_is_there(row: list[str]):
    _, _, end, alarm = row
    assert alarm
    assert end != "no" or METRIC.search(alarm) or "a person asked for it" in alarm
    assert {*METRIC.findall(alarm)} <= names()
    assert {*INVARIANT.findall(alarm)} <= {name.split()[0] for name in INVARIANTS}


@pytest.mark.parametrize("page", sorted((ROOT / "docs/runbooks").glob("*.md")), ids=lambda page: page.stem)
def test_metrics_that_runbooks_name_are_there(page: Path):
    assert {*METRIC.findall(page.read_text())} <= names()
