"""One run: some jobs, people and faults at random for a while, then peace, in which all must come to rest."""

import gc
import random
from collections.abc import Iterator
from dataclasses import replace

from tests.simulation.clock import Process, pause
from tests.simulation.faults import Faults
from tests.simulation.kernel import Switches
from tests.simulation.liveness import run_to_rest
from tests.simulation.nemesis import Nemesis
from tests.simulation.users import CAPACITY, Users
from tests.simulation.violation import Violation
from tests.simulation.world import Setting, World

PEACE_SECONDS = 150.0
COMMANDS = {
    1: "SIM_SEED={} pytest tests/simulation/test_simulation.py",
    2: "SIM_SEED={} pytest tests/simulation/test_two_processes.py",
}
"""By the number of processes of each service."""


def run(seed: int, switches: Switches | None = None, *, processes: int = 1) -> World:
    """Raises Violation, with the seed and the end of the history of a second, traced run of it."""
    setting = Setting(switches=switches or Switches(), processes=processes)
    try:
        return _run(seed, setting)
    except Violation as first:
        try:
            _run(seed, replace(setting, is_traced=True))
        except Violation as traced:
            raise Violation(f"{traced}\nrepeat: {COMMANDS[processes].format(seed)}") from traced.__cause__
        raise Violation(f"{first}\nand the same seed, run again, did not show it") from first


def runs(
    seed: int, messages: int, switches: Switches | None = None, *, processes: int = 1
) -> Iterator[World]:
    """Seeds from this one on, until so many messages were handled."""
    done = 0
    # A world is a web of references: collecting it now and then is cheaper than looking for it all the time.
    gc.disable()
    try:
        while done < messages:
            world = run(seed, switches, processes=processes)
            done += world.messages
            seed += 1
            yield world
            if seed % 20 == 0:
                gc.collect()
    finally:
        gc.enable()


def _run(seed: int, setting: Setting) -> World:
    # Drawn apart from the world's own numbers, so that they do not depend on how it is built.
    rng = random.Random(f"setting {seed}")
    faults = Faults.some(rng)
    setting = replace(
        setting, max_lag=rng.choice((0.05, 1.0, 8.0, 40.0)), num_steps=rng.choice((8, 24, 24, 24, 160))
    )
    world = World(seed, faults, setting)
    try:
        _live(world, rng)
    finally:
        world.clock.close()
    return world


def _live(world: World, rng: random.Random) -> None:
    users, nemesis = Users(world), Nemesis(world)
    users.begin()
    world.run(1.0)
    for _ in range(rng.randint(1, 5)):
        users.submit()
    nemesis.begin(every=rng.choice((8.0, 30.0, 120.0)))
    Process(world.clock, _act(users, every=rng.choice((4.0, 15.0, 60.0))))
    # Apart from the other numbers, so that jobs go as they did before there were leases.
    Process(world.clock, _lease(users, random.Random(f"leases {world.seed}")))
    world.run(rng.choice((60.0, 200.0, 500.0)))
    world.faults.end()
    world.max_lag = 0.5
    users.resize(CAPACITY)
    world.run(PEACE_SECONDS)
    # A drain may have been on its way.
    users.resize(CAPACITY)
    run_to_rest(world)


async def _lease(users: Users, rng: random.Random) -> None:
    while users.world.faults.active:
        users.lease(rng)
        await pause(rng.expovariate(1 / 30.0))


async def _act(users: Users, every: float) -> None:
    world = users.world
    while True:
        await pause(world.rng.expovariate(1 / every))
        if not world.faults.active:
            return
        if world.rng.random() < 0.2 and len(users.jobs) < 12:
            users.submit()
        else:
            users.act()
