"""One job, one fault, one command, at one state of the job: every combination once."""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

from tests.simulation.clock import Process, pause
from tests.simulation.faults import CRASHES, LIES
from tests.simulation.liveness import run_to_rest
from tests.simulation.nemesis import ACTS, Nemesis
from tests.simulation.users import CAPACITY, Users
from tests.simulation.violation import Violation
from tests.simulation.wiring import SERVICES
from tests.simulation.world import Setting, World

STATES: dict[str, str] = {
    "validating": "JobSubmitted",
    "queued": "JobQueued",
    "provisioning": "JobScheduled",
    "running": "JobRunning",
    "stopping": "JobStopping",
    "paused": "JobPaused",
    "evaluating": "JobEvaluating",
    "over": "JobSucceeded",
}
"""State -> the fact that it begins with."""

CHANGE_BASE = "change the base model"
COMMANDS: dict[str, Callable[[Users, str], None]] = {
    "cancel": lambda users, job: users.cancel(job, reason="user"),
    "cancel for the budget": lambda users, job: users.cancel(job, reason="budget"),
    "pause": lambda users, job: users.pause(job),
    "resume": lambda users, job: users.resume(job),
    "retry": lambda users, job: users.retry(job),
    "preempt with notice": lambda users, job: users.preempt(job, notice_seconds=20.0),
    "preempt at once": lambda users, job: users.preempt(job, notice_seconds=0.0),
    "drain": lambda users, job: users.drain(job),
    "delete the dataset": lambda users, job: users.delete_dataset(job),
    CHANGE_BASE: lambda users, job: users.register_base(2),
}
FAULTS: tuple[tuple[str, str], ...] = (
    *product(CRASHES, SERVICES),
    *product(LIES, ("",)),
    *product(ACTS, ("",)),
)
"""Kind, and the service that it strikes where it is one's own."""

Pair = tuple[str, tuple[str, str], str]
STEPS = 8
PATIENCE_SECONDS = 900.0


def name_of(pair: Pair) -> str:
    state, (kind, service), command = pair
    return f"{state}/{kind}/{service}/{command}"


def pair_named(name: str) -> Pair:
    state, kind, service, command = name.split("/")
    return state, (kind, service), command


def pairs_in(state: str) -> Iterator[Pair]:
    return product((state,), FAULTS, COMMANDS)  # type: ignore[return-value]


def run_pair(pair: Pair) -> World:
    """Raises Violation with the end of the history."""
    setting = Setting(max_lag=1.0, num_steps=STEPS)
    try:
        return _run(pair, setting)
    except Violation:
        try:
            _run(pair, replace(setting, is_traced=True))
        except Violation as traced:
            repeat = f"SIM_PAIR={name_of(pair)!r} pytest tests/simulation/test_pairs.py"
            raise Violation(f"{traced}\nrepeat: {repeat}") from traced.__cause__
        raise


def _run(pair: Pair, setting: Setting) -> World:
    world = World(zlib.crc32(name_of(pair).encode()), setting=setting)
    try:
        _live(world, pair)
    finally:
        world.clock.close()
    return world


def _live(world: World, pair: Pair) -> None:
    state, fault, command = pair
    users = Users(world)
    users.begin()
    world.run(8.0)
    if state == "queued":
        users.resize(dict.fromkeys(CAPACITY, 0))
        world.run(3.0)
    job = users.submit(nodes=2, dataset="ready", after=20.0 if state == "validating" else 1.0)
    _bring_to(world, users, job, state)
    _strike(world, *fault)
    COMMANDS[command](users, job)
    world.run(20.0)
    users.resize(CAPACITY)
    run_to_rest(world)
    for paused in _paused(world):
        users.resume(paused)
    world.run(5.0)
    run_to_rest(world)
    if command != CHANGE_BASE and (paused := _paused(world)):
        world.alarm("still paused", f"{', '.join(paused)} after {command} and a resume")


def _paused(world: World) -> list[str]:
    return [job for job, fact in world.checker.jobs.last.items() if fact == "JobPaused"]


def _bring_to(world: World, users: Users, job: str, state: str) -> None:
    if state in ("stopping", "paused"):
        _until(world, job, "JobRunning")
        if state == "stopping":
            users.preempt(job, notice_seconds=20.0)
        else:
            users.pause(job)
    _until(world, job, STATES[state])


def _until(world: World, job: str, fact: str) -> None:
    until = world.clock.now + PATIENCE_SECONDS
    while world.checker.jobs.last.get(job) != fact:
        has_ended = world.checker.jobs.last.get(job) == "JobSucceeded" or world.clock.now > until
        assert not has_ended, f"{job} did not come to {fact}: {world.checker.jobs.last}"
        world.clock.step()


def _strike(world: World, kind: str, service: str) -> None:
    """At once where there is a victim, else as soon as there is one."""
    if kind not in ACTS:
        world.faults.arm(kind, service)
        return
    nemesis = Nemesis(world)

    async def until_done() -> None:
        until = world.clock.now + PATIENCE_SECONDS
        while not nemesis.strike(kind) and world.clock.now < until:
            await pause(1.0)

    Process(world.clock, until_done())
