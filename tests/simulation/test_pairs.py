"""Every single fault with every command in every phase of a job, once each.

A failing one is repeated by SIM_PAIR='<phase>/<fault>/<service>/<command>' pytest tests/simulation/test_pairs.py.
"""

import os
from collections import Counter

import pytest

from tests.chaos.scale import note
from tests.simulation.pairs import ACTS, PHASES, pair_named, pairs_in, run_pair


@pytest.mark.skipif("SIM_PAIR" in os.environ, reason="one pair is asked for")
@pytest.mark.parametrize("phase", PHASES)
def test_a_fault_and_a_command_together_break_nothing(phase):
    ends: Counter[str] = Counter()
    struck: Counter[str] = Counter()
    messages = pairs = 0
    for pair in pairs_in(phase):
        world = run_pair(pair)
        ends.update(world.checker.jobs.last.values())
        struck.update(world.faults.struck)
        messages, pairs = messages + world.messages, pairs + 1
    note(f"simulation pairs {phase}", messages=messages, pairs=pairs, faults=struck.total())
    assert set(ends) <= {"JobSucceeded", "JobFailed", "JobCancelled"}
    if phase not in ("evaluating", "over"):
        assert set(struck) >= set(ACTS)


@pytest.mark.skipif("SIM_PAIR" not in os.environ, reason="no pair is asked for")
def test_one_pair():
    run_pair(pair_named(os.environ["SIM_PAIR"]))
