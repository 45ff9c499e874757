"""Every single fault with every command in every state of a job, once each; at a change, each seventh of these pairs.

A failing one is repeated by SIM_PAIR='<state>/<fault>/<service>/<command>' pytest tests/simulation/test_pairs.py.
"""

import math
import os
from collections import Counter

import pytest

from tests.chaos.scale import note, scaled
from tests.simulation.faults import CRASHES, LIES
from tests.simulation.nemesis import ACTS
from tests.simulation.pairs import COMMANDS, FAULTS, STATES, pair_named, run_pair
from tests.simulation.processes import in_parallel

EVERY = scaled(7, 1, 1)
"""Has no common divisor with the number of commands, so that each fault still meets several of them."""
HALVES = (
    ("validating", "provisioning", "stopping", "evaluating"),
    ("queued", "running", "paused", "over"),
)


@pytest.mark.skipif("SIM_PAIR" in os.environ, reason="one pair is asked for")
def test_a_fault_and_a_command_together_break_nothing():
    assert {*HALVES[0], *HALVES[1]} == set(STATES)
    struck: Counter[str] = Counter()
    orders = [["pairs", str(EVERY), *states] for states in HALVES]
    for states, result in zip(HALVES, in_parallel(*orders), strict=True):
        assert result["worlds"] == math.ceil(len(states) * len(FAULTS) * len(COMMANDS) / EVERY)
        assert set(result["ends"]) - {"JobPaused"} == {"JobSucceeded", "JobFailed", "JobCancelled"}
        struck.update(result["struck"])
        note("simulation pairs", pairs=result["worlds"], messages=result["messages"])
    assert set(struck) == {*CRASHES, *LIES, *ACTS}


@pytest.mark.skipif("SIM_PAIR" not in os.environ, reason="no pair is asked for")
def test_one_pair():
    run_pair(pair_named(os.environ["SIM_PAIR"]))
