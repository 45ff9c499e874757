"""Every single fault with every command in every phase of a job, once each.

A failing one is repeated by SIM_PAIR='<phase>/<fault>/<service>/<command>' pytest tests/simulation/test_pairs.py.
"""

import os
from collections import Counter

import pytest

from tests.chaos.scale import note
from tests.simulation.faults import CRASHES, LIES
from tests.simulation.nemesis import ACTS
from tests.simulation.pairs import COMMANDS, FAULTS, PHASES, pair_named, run_pair
from tests.simulation.processes import in_parallel

HALVES = (
    ("validating", "provisioning", "stopping", "evaluating"),
    ("queued", "running", "paused", "over"),
)


@pytest.mark.skipif("SIM_PAIR" in os.environ, reason="one pair is asked for")
@pytest.mark.timeout(900)
def test_a_fault_and_a_command_together_break_nothing():
    assert {*HALVES[0], *HALVES[1]} == set(PHASES)
    struck: Counter[str] = Counter()
    for phases, result in zip(HALVES, in_parallel(*(["pairs", *phases] for phases in HALVES)), strict=True):
        assert result["worlds"] == len(phases) * len(FAULTS) * len(COMMANDS)
        assert set(result["ends"]) - {"JobPaused"} == {"JobSucceeded", "JobFailed", "JobCancelled"}
        struck.update(result["struck"])
        note("simulation pairs", pairs=result["worlds"], messages=result["messages"])
    assert set(struck) == {*CRASHES, *LIES, *ACTS}


@pytest.mark.skipif("SIM_PAIR" not in os.environ, reason="no pair is asked for")
def test_one_pair():
    run_pair(pair_named(os.environ["SIM_PAIR"]))
