"""What must be true in the end: every job rests, nothing is left at the engine, nothing is on its way."""

from typing import TYPE_CHECKING

from services.provisioner.model import GONE, LeaseState
from tests.simulation.checks.jobs import TERMINAL

if TYPE_CHECKING:
    from tests.simulation.world import World

RESTING = TERMINAL | {"JobPaused"}
LOOK_EVERY_SECONDS = 30.0
WITHIN_SECONDS = 3 * 3600.0
STOP_MARGIN_SECONDS = 300.0


def run_to_rest(world: "World") -> None:
    """Let everything come to its end, in bounded time, and look at what is left."""
    until = world.clock.now + WITHIN_SECONDS
    began = world.clock.now
    while left := unfinished(world):
        if world.clock.now > until:
            world.alarm(
                "not at rest", f"{WITHIN_SECONDS / 3600} h after the last fault: {'; '.join(left[:6])}"
            )
        if world.clock.now > began + STOP_MARGIN_SECONDS:
            stopped_in_time(world)
        world.run(LOOK_EVERY_SECONDS)
    finished(world)


def unfinished(world: "World") -> list[str]:
    remaining = [
        f"{job} is after {fact}" for job, fact in world.checker.jobs.last.items() if fact not in RESTING
    ]
    remaining += [f"the engine has {name}" for name in world.engine.attempts]
    remaining += [f"{runner.name} lives" for runner in world.engine.live_runners()]
    for name, kernel in world.kernels.items():
        if kernel.outbox.rows:
            remaining.append(f"{name} has {len(kernel.outbox.rows)} rows in its outbox")
        remaining += [
            f"{name} waits with {row[0].type} for {row[1]}" for row in kernel.consumer.waiting.rows.values()
        ]
        remaining += [f"{name} has task {task}" for task in kernel.tasks.rows]
        remaining += [
            f"{name} has not read {c.topic.name}/{c.number}"
            for c in kernel.consumer.cursors
            if c.next is not None
        ]
    tables = world.kernels["provisioner"].tables
    remaining += [f"{key} holds {held}" for key, held in tables.items("holding")]
    remaining += [f"{key} is {each.state}" for key, each in tables.items("attempt") if each.state not in GONE]
    remaining += [
        f"{key} is {each.state}"
        for key, each in tables.items("service_lease")
        if each.state is not LeaseState.ENDED
    ]
    remaining += [f"{key} is booked" for key in dict(world.kernels["scheduler"].tables.items("booking"))]
    return remaining + unserved(world)


def unserved(world: "World") -> list[str]:
    """The highest generation wins: what the registry decided last is what serving knows."""
    remaining = []
    tables = world.kernels["serving_controller"].tables
    for name, generations in world.checker.models.approved.items():
        slot, newest = tables.get("slot", name), max(generations)
        if slot is None or slot.generation != newest:
            remaining.append(f"slot {name} is not at generation {newest}")
        elif slot.state == "pending":
            remaining.append(f"slot {name} is pending")
    return remaining


def stopped_in_time(world: "World") -> None:
    """Whoever can be told to stop does not train long beyond the deadline."""
    for runner in world.engine.live_runners():
        name = (runner.job_id, runner.attempt)
        stop, relayed_at = world.checker.jobs.stops.get(name), world.checker.training.stops_relayed.get(name)
        if stop is None or relayed_at is None or not world.checker.nodes.is_all_said(runner):
            continue
        deadline = world.clock.seconds_of(stop.deadline)
        late = world.clock.now - max(relayed_at, deadline, runner.began_at)
        if late > STOP_MARGIN_SECONDS:
            world.alarm("not stopped", f"{runner.name} works on {late:.0f} s after its deadline")


def finished(world: "World") -> None:
    checker = world.checker
    for name in sorted(checker.jobs.scheduled - checker.nodes.unprovisioned):
        if name not in checker.training.closed:
            world.alarm("not closed", f"attempt {name} has no last fact")
        if name not in checker.nodes.released:
            world.alarm("not released", f"attempt {name}")
    for job in checker.jobs.evaluating:
        answers, needs = checker.models.answers.get(job, 0), checker.jobs.last.get(job) != "JobCancelled"
        if answers > 1 or (needs and not answers):
            world.alarm("verdicts", f"{job} has {answers}, expected {1 if needs else 'at most 1'}")
    parked = {record.id for kernel in world.kernels.values() for record, _ in kernel.consumer.parked}
    if parked != checker.hostile:
        world.alarm("not parked", f"{sorted(checker.hostile - parked)}")
