"""What the simulation found, as the smallest run that shows it, each with the fault put back to see the alarm."""

import math

import pytest

from tests.simulation import uploads
from tests.simulation.kernel import Switches
from tests.simulation.liveness import run_to_rest
from tests.simulation.users import Users
from tests.simulation.violation import Violation
from tests.simulation.world import Setting, World


@pytest.fixture
def build():
    built = []

    def build(setting: Setting, *, seed: int = 1) -> tuple[World, Users]:
        world = World(seed, setting=setting)
        built.append(world)
        users = Users(world)
        users.begin()
        world.run(8.0)
        return world, users

    yield build
    for world in built:
        world.clock.close()


def a_fact_waits_while_its_service_is_down(world: World, users: Users) -> None:
    """The watcher hears TrainingStarted before JobScheduled; it goes away, and then its backlog takes a while."""
    watcher = world.kernels["checkpoint_watcher"]
    for cursor in watcher.consumer.cursors:
        if cursor.topic.name == "job.events":
            cursor.stalled_until = world.clock.now + 1200.0
    users.submit(nodes=1, dataset="ready", after=1.0)
    while not watcher.consumer.waiting.rows:
        world.run(0.5)
    watcher.crash(seconds=1000.0)
    run_to_rest(world)


def test_an_outage_is_no_waiting(build):
    world, users = build(Setting(max_lag=0.05))
    a_fact_waits_while_its_service_is_down(world, users)
    assert world.checker.jobs.last == {"job-1": "JobSucceeded"}


def test_an_outage_that_counts_parks_an_honest_fact(build):
    world, users = build(Setting(max_lag=0.05, switches=Switches(limit_counts_outages=True)))
    with pytest.raises(Violation, match=r"^parked: checkpoint_watcher .* parent_unknown"):
        a_fact_waits_while_its_service_is_down(world, users)


def a_peer_leaves_without_its_part(world: World, users: Users) -> None:
    """Node 1 alone has a notice, and its part of the last bundle is too slow for it."""
    users.submit(nodes=2, dataset="ready", after=1.0)
    while world.checker.jobs.last.get("job-1") != "JobRunning":
        world.run(0.5)
    while len(gang := [each for each in world.engine.live_runners() if each.progress.has_stepped]) < 2:
        world.run(0.5)
    peer = next(runner for runner in gang if runner.index == 1)
    peer.is_slow = True
    peer.take_notice()
    run_to_rest(world)


def test_the_wait_for_a_peer_that_left_ends(build):
    world, users = build(Setting(max_lag=0.05, num_steps=160))
    a_peer_leaves_without_its_part(world, users)
    assert world.checker.jobs.last == {"job-1": "JobSucceeded"}
    assert world.checker.jobs.epochs == {"job-1": 2}


def test_a_wait_for_a_peer_that_has_no_end_is_seen(build, monkeypatch):
    monkeypatch.setattr(uploads, "LAST_PATIENCE_SECONDS", math.inf)
    world, users = build(Setting(max_lag=0.05, num_steps=160))
    with pytest.raises(Violation, match=r"^not at rest: .* job-1 is after JobRunning"):
        a_peer_leaves_without_its_part(world, users)


def the_log_is_away_during_training(world: World, users: Users) -> None:
    users.submit(nodes=2, dataset="ready", after=1.0)
    while world.checker.jobs.last.get("job-1") != "JobRunning":
        world.run(0.5)
    while not any(each.progress.has_stepped for each in world.engine.live_runners()):
        world.run(0.5)
    world.log.away_until = world.clock.now + 600.0
    run_to_rest(world)


def test_an_outage_of_the_log_ends_no_training(build):
    world, users = build(Setting(max_lag=0.05, num_steps=2000))
    the_log_is_away_during_training(world, users)
    assert world.checker.jobs.last == {"job-1": "JobSucceeded"}
    assert world.checker.jobs.epochs == {"job-1": 1}


def test_silence_that_counts_an_outage_ends_one(build):
    # With some seeds the job is done before it is missed.
    setting = Setting(max_lag=0.05, num_steps=2000, switches=Switches(silence_counts_outages=True))
    world, users = build(setting, seed=2)
    the_log_is_away_during_training(world, users)
    assert world.checker.jobs.epochs["job-1"] > 1
