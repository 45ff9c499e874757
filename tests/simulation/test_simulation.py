"""Random worlds with faults, people and lying engines: no violation in so many messages.

A failing seed is repeated by SIM_SEED=<seed> pytest tests/simulation/test_simulation.py.
"""

import os

import pytest

from tests.chaos.scale import note, scaled, seed
from tests.simulation.faults import LIES, PLACES
from tests.simulation.nemesis import ACTS
from tests.simulation.processes import in_parallel
from tests.simulation.scenario import run
from tests.simulation.world import World

PROCESSES = 2
MESSAGES = scaled(100_000, 500_000, 100_000_000) // PROCESSES
SEEDS_OF_A_PROCESS = 100_000_000
"""More than any uses."""


@pytest.mark.skipif("SIM_SEED" in os.environ, reason="one seed is asked for")
@pytest.mark.timeout(scaled(1200, 1200, 100_000))
def test_nothing_that_must_hold_is_violated():
    firsts = [(PROCESSES * (seed() - 1) + number) * SEEDS_OF_A_PROCESS + 1 for number in range(PROCESSES)]
    ends, struck = set[str](), set[str]()
    for result in in_parallel(*(["worlds", str(first), str(MESSAGES), "1"] for first in firsts)):
        note(
            "simulation",
            messages=result["messages"],
            worlds=result["worlds"],
            faults=sum(result["struck"].values()),
            messages_per_second=result["messages"] / result["cpu_seconds"],
        )
        assert result["messages"] >= MESSAGES
        ends |= result["ends"].keys()
        struck |= result["struck"].keys()
    assert ends == {"JobSucceeded", "JobFailed", "JobCancelled", "JobPaused"}
    assert struck == {*PLACES, *LIES, *ACTS}


@pytest.mark.skipif("SIM_SEED" not in os.environ, reason="no seed is asked for")
def test_one_seed():
    run(int(os.environ["SIM_SEED"]))


def test_the_same_seed_is_the_same_run():
    first, second = (traces(run(7)) for _ in range(2))
    assert first == second


def traces(world: World) -> tuple[object, ...]:
    return (
        world.messages,
        world.clock.now,
        world.checker.jobs.last,
        world.faults.struck,
        world.storage.bundles,
    )
