"""Everything at once: users at work while processes die, freeze and lose their lines. Then all must be at rest."""

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import asyncpg
import pytest

from deploy.local.stack import Stack
from ops.doctor.history import History, Snapshot
from schemas.base import CommandRefused
from schemas.topics import LISTENS, SERVICES, TOPICS
from shared.messaging.login import Login
from tests.chaos.checker import Violated, examine, hold
from tests.chaos.error_lines import counted, error_lines, unexpected
from tests.chaos.load import Load
from tests.chaos.nemesis import Nemesis, SmallDisk, too_few
from tests.chaos.progress import report
from tests.chaos.replaying import Replay
from tests.chaos.rig import Rig, rig
from tests.chaos.scale import at_night, is_full, note, scale, scaled, seed
from tests.chaos.tampering import BROKEN, break_everything

SECONDS = 60.0 * float(os.environ.get("CHAOS_MINUTES", scaled(25, 120, 3600) / 60))
REST_SECONDS = 120.0
"""From the last fault to a stack on which nothing is under way."""
MAX_MEBIBYTES = 300
"""Of any service's process, before and after."""
MIN_STRUCK = 0.7
"""Of the faults that were planned; some aim at children that live for seconds."""

FEWEST_READ = {"accounts": 0, "serving_controller": 5}
"""Records that a service reads again at least, where these are not 60: nobody makes users of Kafka in a soak."""
AT_A_START = {
    "node.events PoolCapacityChanged": "the provisioner announces its pools when it starts",
    "scheduler.pool": "the same",
    "eval.events GatePolicyPublished": "the suites of the soak were registered after the evaluator had started",
    "evaluator.policy": "the same",
}
"""What a start changes, whether or not anything is read again, and why."""
JUDGED_BY_STATE = {
    **{
        f"{topic.name} CommandRefused": "what is there already or over is refused"
        for topic in TOPICS
        if CommandRefused in topic.messages
    },
    "gateway.outcome": "shows refusals",
    "gateway.refusal": "the same",
    "gateway.job_event": "shows each answer in the timeline of its job",
    "tenant.demo.events CommandRefused": "copies of the tenant's answers",
    "tenant.demo.events DatasetReady": "the same",
    "dataset.events DatasetReady": "RegisterDataset of a version that is ready is answered again",
    "gateway.dataset": "the same answer, with the time at which it came",
    "eval.events BenchmarkRegistered": "an equal suite is registered again",
    "eval.events SafetySuiteRegistered": "the same",
    "evaluator.suite": "the same suite, with the time at which it came",
    "gateway.suite": "the same",
    "model.events BaseModelRegistered": "an equal base model is registered again",
    "gateway.base_model": "the same base model, with the time at which it came",
    "agent.directives StopTraining": "runners of attempts that are over are sent away, and none is there",
    "trainer_agent.dropped_claim": "what they report counts for nothing",
    "trainer_agent.runner": "when they were heard",
    **{
        f"parked.{service} MessageParked": "a fact whose number is known and whose id is not is set aside"
        for service in SERVICES
    },
}
"""What comes of commands, facts and reports that a service cannot know by their ids any more, and why."""

pytestmark = [pytest.mark.stack, pytest.mark.timeout(SECONDS + 1200)]


@pytest.fixture(scope="module")
async def whole(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    async with rig(tmp_path_factory.mktemp("soak"), seed=seed()) as soak_rig:
        yield soak_rig


async def test_nothing_is_lost_doubled_or_left_behind(whole: Rig, tmp_path: Path):
    load = Load(whole.stack, seed(), max_open=scaled(8, 8, 12))
    try:
        await load.prepare(tmp_path)
        at_rest = whole.memory()
        nemesis = await torment(whole, load)
        began = time.monotonic()
        await load.finish(within_seconds=REST_SECONDS)
        ended_after = time.monotonic() - began
        say(f"every job has ended {ended_after:.1f} s after the last fault")
        quiet = await hold(whole.stack, within_seconds=REST_SECONDS - ended_after, say=say)
        rest_seconds = ended_after + quiet.after_seconds
        await require_none(load)
        require_no_deadlock(whole.stack)
        require_no_unexpected_error(whole.stack)
        require_no_secret(whole.stack, quiet.history)
        await asyncio.to_thread(load.retune, ("doctor", "--grace", "10"))
    except Violated as violated:
        raise AssertionError(f"{violated}\n{repeat()}") from violated
    finally:
        await load.close()
    snapshot = quiet.history.snapshot
    after = whole.memory()
    tell(load, nemesis, rest_seconds, snapshot, at_rest=at_rest, after=after)
    assert len(snapshot.jobs) >= SECONDS / 20, "the load was no load"
    assert any(each.outcome == "ready" for each in snapshot.generations), "nothing was ever served"
    assert len(nemesis.struck) >= MIN_STRUCK * len(nemesis.blows), "the faults were no faults"
    if is_full():
        seldom = too_few(nemesis.struck, nemesis.blows, seconds=SECONDS)
        assert seldom == {}, f"struck too seldom: {seldom}; {repeat()}"
    assert max(*at_rest.values(), *after.values()) <= MAX_MEBIBYTES, (at_rest, after)


async def test_every_service_reads_every_topic_again(whole: Rig):
    read = await replayed(whole, allowed=AT_A_START)
    note("replay after a soak", **read)


@at_night("starts every service once more")
async def test_every_service_reads_every_topic_again_and_its_inbox_has_forgotten_all(whole: Rig):
    read = await replayed(whole, allowed=AT_A_START | JUDGED_BY_STATE, without_inbox=True)
    note("replay without inboxes", **read)


async def test_what_is_broken_by_hand_is_found(whole: Rig):
    """On the same stack, which is of no use after this."""
    history, _ = await examine(whole.stack)
    await break_everything(whole.stack, history)
    _, findings = await examine(whole.stack, say)
    invariants = {finding.invariant.split()[0] for finding in findings}
    assert invariants >= BROKEN, f"missed {sorted(BROKEN - invariants)}"


async def replayed(whole: Rig, *, allowed: Mapping[str, str], without_inbox: bool = False) -> dict[str, int]:
    """Return how many records each service has read again, which has changed no more than what is allowed."""
    stack = whole.stack
    login = Login(stack.kafka_bootstrap, "admin", stack.kafka_password("admin"))
    services = tuple(service for service in stack.services if LISTENS[service])
    async with asyncpg.create_pool(stack.postgres_dsn("operator"), min_size=0, max_size=2) as db:
        replay = Replay(stack, db, login, services, whole.start)
        changes = await replay.changes(without_inbox=without_inbox)
    say(f"read again: {replay.read}; changed: {changes}")
    topics = {name.partition(" ")[0] for name in allowed if " " in name}
    assert {name: what for name, what in changes.items() if name not in topics | allowed.keys()} == {}
    seldom = {name: replay.read[name] for name in services if replay.read[name] < FEWEST_READ.get(name, 60)}
    assert seldom == {}, "hardly anything was read again"
    return replay.read


async def torment(whole: Rig, load: Load) -> Nemesis:
    """Load and misfortune at the same time, for the whole time."""
    disk = whole.disk if isinstance(whole.disk, SmallDisk) else None
    nemesis = Nemesis(whole.stack, seed=seed(), seconds=SECONDS, lines=whole.lines, disk=disk)
    if disk is None:
        say(str(whole.disk))
    progress = asyncio.create_task(report(SECONDS, lambda: counts(load, nemesis)))
    try:
        await asyncio.gather(load.run(SECONDS), nemesis.run())
    finally:
        progress.cancel()
    return nemesis


def counts(load: Load, nemesis: Nemesis) -> dict[str, int]:
    return {"jobs": len(load.accepted), "faults": len(nemesis.struck), "missed": len(nemesis.missed)}


async def require_none(load: Load) -> None:
    """Of the problems that users have."""
    async with asyncpg.create_pool(load.stack.postgres_dsn("operator"), min_size=0, max_size=2) as pool:
        if problems := await load.problems(pool):
            raise Violated("\n".join(problems))


def require_no_deadlock(stack: Stack) -> None:
    """Who writes one aggregate takes its row first, so no two ever wait for each other."""
    deadlocks = stack.log("postgres").read_text(errors="replace").count("deadlock detected")
    if deadlocks:
        raise Violated(f"{deadlocks} deadlocks in Postgres; its log is {stack.log('postgres')}")


def require_no_unexpected_error(stack: Stack) -> None:
    """Level `error` means that somebody must act: here only where a fault that struck explains it."""
    if lines := unexpected(error_lines(stack)):
        raise Violated("\n".join([f"{len(lines)} unexpected lines of level error:", *map(str, lines[:20])]))


def require_no_secret(stack: Stack, history: History) -> None:
    """No password and no key of the stack is in a log, or in a record of the topics that the doctor reads."""
    secrets = json.loads((stack.state.root / "secrets.json").read_text())
    del secrets["mark"]  # what processes are known by
    logs = sorted(stack.log("postgres").parent.glob("*.log*"))
    texts = {path.name: path.read_text(errors="replace") for path in logs} | {"topics": repr(history.entries)}
    leaks = [
        f"{name} is in {where}"
        for name, secret in secrets.items()
        for where in texts
        if secret in texts[where]
    ]
    if leaks:
        raise Violated("\n".join(leaks))


def outcomes(snapshot: Snapshot) -> Counter[str]:
    ends = Counter(f"jobs {job.state}" for job in snapshot.jobs.values())
    attempts = Counter(f"jobs with {job.attempt} attempts" for job in snapshot.jobs.values())
    stages = Counter(f"models in {model.stage}" for model in snapshot.models)
    return ends + attempts + stages + Counter({"slots routed": len(snapshot.routes)})


def say(line: str) -> None:
    print(f"{time.strftime('%X')} {line}", flush=True)  # noqa: T201


def repeat() -> str:
    settings = f"CHAOS_SCALE={scale()} CHAOS_MINUTES={SECONDS / 60:g} CHAOS_SEED={seed()}"
    return f"again with: {settings} make test T=tests/chaos/test_soak.py"


def tell(
    load: Load,
    nemesis: Nemesis,
    rest_seconds: float,
    snapshot: Snapshot,
    *,
    at_rest: dict[str, int],
    after: dict[str, int],
) -> None:
    jobs = len(snapshot.jobs)
    faults = f"{len(nemesis.struck)} faults, {len(nemesis.missed)} more at what was not there"
    say(f"{jobs} jobs in {SECONDS:g} s ({60 * jobs / SECONDS:.1f} a minute), {faults}")
    say(f"at rest {rest_seconds:.1f} s after the last fault")
    for what, count in sorted(outcomes(snapshot).items()):
        say(f"{count:6} {what}")
    for what, count in counted(error_lines(load.stack)).most_common():
        say(f"{count:6} times in a log: {what}")
    for what, count in sorted(load.did.items()):
        say(f"{count:6} {what}")
    for name in sorted(after):
        say(f"{name:20} {at_rest[name]:4} MiB at rest, {after[name]:4} MiB after")
    note(
        "soak",
        seconds=SECONDS,
        jobs=jobs,
        faults=len(nemesis.struck),
        missed=len(nemesis.missed),
        rest_seconds=rest_seconds,
        most_mebibytes=max(after.values()),
    )
