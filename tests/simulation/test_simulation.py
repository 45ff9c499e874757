"""Random worlds with faults, people and lying engines: no violation in so many messages.

A failing seed is repeated by SIM_SEED=<seed> pytest tests/simulation/test_simulation.py.
"""

import os
from collections import Counter

import pytest

from tests.chaos.scale import note, scaled
from tests.simulation.faults import LIES, PLACES
from tests.simulation.nemesis import Nemesis
from tests.simulation.scenario import run, runs
from tests.simulation.world import World

PARTS = 8
MESSAGES = scaled(1_000_000, 100_000_000) // PARTS
SEEDS_PER_PART = 10_000_000
"""More than any part uses."""


@pytest.mark.skipif("SIM_SEED" in os.environ, reason="one seed is asked for")
@pytest.mark.timeout(scaled(120, 100_000))
@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_that_must_hold_is_violated(part):
    first = part * SEEDS_PER_PART + 1
    ends: Counter[str] = Counter()
    struck: Counter[str] = Counter()
    messages = worlds = 0
    for world in runs(first, MESSAGES):
        ends.update(world.checker.jobs.last.values())
        struck.update(world.faults.struck)
        messages, worlds = messages + world.messages, worlds + 1
    note(
        f"simulation part {part}", messages=messages, worlds=worlds, jobs=ends.total(), faults=struck.total()
    )
    assert messages >= MESSAGES
    assert set(ends) == {"JobSucceeded", "JobFailed", "JobCancelled", "JobPaused"}
    assert set(struck) == {*PLACES, *LIES, *Nemesis(world).acts}


@pytest.mark.skipif("SIM_SEED" not in os.environ, reason="no seed is asked for")
def test_one_seed():
    run(int(os.environ["SIM_SEED"]))


def test_the_same_seed_is_the_same_run():
    first, second = (_traces(run(7)) for _ in range(2))
    assert first == second


def _traces(world: World) -> tuple[object, ...]:
    return (
        world.messages,
        world.clock.now,
        world.checker.jobs.last,
        world.faults.struck,
        world.storage.bundles,
    )
