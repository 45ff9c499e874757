"""The gate's checks on models whose truth is known; the table at full size is in docs/gate.md."""

import pytest

from bench.gate.power import Case, cases

DRAWS = 300
NOISE = 0.025
"""Twice the standard error of a share of 5 % in so many draws."""


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.name)
def test_false_passes_and_false_blocks_are_rare(case: Case):
    rates = case.measure(DRAWS)
    for outcome, (low, high) in case.limits.items():
        assert low - NOISE <= rates[outcome] <= high + NOISE, rates


def test_every_check_is_measured_at_the_smallest_suite_it_admits():
    smallest: dict[str, int] = {}
    for case in cases():
        check = case.check.partition(",")[0]
        smallest[check] = min(case.count, smallest.get(check, case.count))
    assert smallest == {"benchmark": 20, "holdout": 100, "safety": 120, "over_refusal": 100, "judge": 60}
