"""Alerts on real Kafka and Postgres: once per episode, whoever reads the steps and whatever dies in between."""

import math
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from deploy.local.stack import Stack
from schemas.alert import AlertRaised, AlertRule, MuteAlerts, UnmuteAlerts
from schemas.base import CapacityType, FailureClass
from schemas.node import AllocatedNode, NodesProvisioned
from schemas.training import StepMetrics, StepsRecorded, TrainingFailed, TrainingStopped
from tests.integration.kills import second_process
from tests.integration.tracker_world import db, tracker, voice
from tests.integration.voices import Ear, Voices, ear
from tests.waiting import until

__all__ = ["db", "tracker", "voice"]

pytestmark = pytest.mark.stack

TENANT = "demo"
NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)
HIGH = range(101, 107)
SILENT_FOR_A_MINUTE = """
    UPDATE tracker.watch SET look_at = now(), signals = jsonb_set(jsonb_set(signals, '{gaps}', '[0.01]'),
           '{heard_at}', to_jsonb(now() - interval '1 minute')) WHERE job_id = $1"""

HAS_NODES = "INSERT INTO tracker.cost (job_id, attempt, tenant, pool) VALUES ($1, 1, 'demo', 'cpu')"


@pytest.fixture(scope="module")
async def heard(tracker: Stack) -> AsyncIterator[Ear]:
    async with ear(tracker, "run.alerts") as heard:
        yield heard


@pytest.fixture
async def run(voice: Voices) -> str:
    job_id = f"ftjob-{uuid4().hex[:8]}"
    node = AllocatedNode(node_id="n", index=0, price_per_hour=Decimal(1), allocated_at=NOON)
    held = {"pool": "cpu", "capacity_type": CapacityType.SPOT, "nodes": (node,)}
    await voice.say("provisioner", NodesProvisioned(**of(job_id), **held))
    return job_id


def of(job_id: str) -> dict[str, object]:
    return {"job_id": job_id, "tenant": TENANT, "attempt": 1}


def recorded(job_id: str, steps: Iterable[int]) -> StepsRecorded:
    rows = [
        StepMetrics(
            step=step,
            time=NOON + timedelta(seconds=step),
            loss=5.0 if step in HIGH else 1.1 + 1.9 * step**-0.24 + 0.01 * (step % 3),
            learning_rate=2e-4,
            grad_norm=1.0 + 0.1 * (step % 4),
            num_tokens=512,
            tokens_per_second=800.0,
            memory_bytes=1024,
            epoch=step / 1000,
        )
        for step in steps
    ]
    return StepsRecorded(**of(job_id), steps=tuple(rows))


async def until_step(db: asyncpg.Connection, job_id: str, step: int) -> None:
    async def is_there() -> bool:
        query = "SELECT (signals->>'step')::int >= $2 FROM tracker.watch WHERE job_id = $1"
        return bool(await db.fetchval(query, job_id, step))

    await until(is_there, f"step {step} looked at")


async def test_a_spike_is_raised_and_cleared_once_whatever_comes_again(
    voice: Voices, heard: Ear, db, run: str
):
    batches = [recorded(run, range(first, first + 20)) for first in range(1, 141, 20)]
    for batch in batches:
        event_id = await voice.say("runner", batch)
        await voice.say("runner", batch, event_id=event_id)
        await voice.say("runner", batch)
    await until_step(db, run, 140)
    await heard.until(run, "AlertRaised", "AlertCleared")
    raised, cleared = (each.message for each in heard.heard[run])
    assert isinstance(raised, AlertRaised)
    assert (raised.rule, raised.episode, raised.step, raised.value, raised.tenant) == (
        "loss_spike",
        1,
        103,
        5.0,
        TENANT,
    )
    assert (cleared.rule, cleared.episode) == ("loss_spike", 1)


async def test_a_muted_rule_is_raised_and_cleared_with_the_mark_and_unmuted_without(
    voice: Voices, heard: Ear, db, run: str
):
    """A mute of the whole tenant would be another test's, too."""
    command = {"tenant": TENANT, "rule": AlertRule.LOSS_SPIKE, "job_id": run}
    await voice.say("gateway", MuteAlerts(**command, muted_by="key_1 of tenant demo"))
    muted = await of_job(heard, run, "AlertsMuted")
    assert (muted.rule, muted.until, muted.muted_by) == ("loss_spike", None, "key_1 of tenant demo")
    await voice.say("runner", recorded(run, range(1, 104)))
    raised = await heard.until(run, "AlertRaised")
    assert (raised.is_muted, raised.unit) == (True, "loss")
    assert raised.value > raised.limit > 0
    await voice.say("gateway", UnmuteAlerts(**command, unmuted_by="key_2 of tenant demo"))
    unmuted = await of_job(heard, run, "AlertsUnmuted")
    assert unmuted.unmuted_by == "key_2 of tenant demo"
    await voice.say("runner", recorded(run, range(104, 141)))
    await heard.until(run, "AlertRaised", "AlertCleared")
    assert [each.message.is_muted for each in heard.heard[run]] == [True, True]
    await voice.say("gateway", UnmuteAlerts(**command, unmuted_by="key_2 of tenant demo"))
    await until(lambda: is_refused(db, "unknown_mute"), "the refusal")


async def of_job(heard: Ear, job_id: str, name: str) -> Any:
    """The newest fact of the tenant's mutes that names the job."""

    async def newest() -> Any:
        facts = [each.message for each in heard.heard[TENANT]]
        mine = [each for each in facts if each.type == name and each.job_id == job_id]
        return mine[-1] if mine else None

    await until(newest, f"{name} of {job_id}")
    return await newest()


async def is_refused(db: asyncpg.Connection, code: str) -> bool:
    query = "SELECT EXISTS (SELECT FROM tracker.outbox WHERE type = 'CommandRefused' AND convert_from(value, 'UTF8') LIKE $1)"
    return bool(await db.fetchval(query, f"%{code}%"))


async def test_a_killed_process_neither_forgets_nor_repeats(
    tracker: Stack, voice: Voices, heard: Ear, db, run: str
):
    """One is killed between two high losses, and again while the alert is open."""
    await voice.say("runner", recorded(run, range(1, 103)))
    await until_step(db, run, 102)
    await tracker.kill("tracker")
    await voice.say("runner", recorded(run, range(95, 105)))
    await heard.until(run, "AlertRaised")
    await tracker.kill("tracker")
    await voice.say("runner", recorded(run, range(100, 141)))
    await heard.until(run, "AlertRaised", "AlertCleared")


async def test_two_processes_raise_each_alert_once(tracker: Stack, voice: Voices, heard: Ear, db):
    """Jobs move between them in the middle of their spikes, as partitions do."""
    runs = [f"ftjob-{uuid4().hex[:8]}" for _ in range(6)]
    node = AllocatedNode(node_id="n", index=0, price_per_hour=Decimal(1), allocated_at=NOON)
    for job_id in runs:
        held = {"pool": "cpu", "capacity_type": CapacityType.SPOT, "nodes": (node,)}
        await voice.say("provisioner", NodesProvisioned(**of(job_id), **held))
        await voice.say("runner", recorded(job_id, range(1, 103)))
    async with second_process(tracker, "tracker") as second:
        for job_id in runs:
            await voice.say("runner", recorded(job_id, range(103, 110)))
        await tracker.wait_healthy(second)
        for job_id in runs:
            await voice.say("runner", recorded(job_id, range(105, 141)))
        for job_id in runs:
            await heard.until(job_id, "AlertRaised", "AlertCleared")
    for job_id in runs:
        await until_step(db, job_id, 140)
        assert heard.types(job_id) == ["AlertRaised", "AlertCleared"]
        assert {each.message.rule for each in heard.heard[job_id]} == {"loss_spike"}


async def test_steps_that_waited_for_their_nodes_are_looked_at_before_newer_ones(
    tracker: Stack, voice: Voices, heard: Ear, db
):
    """The nodes are known here before anybody tries the first steps again."""
    job_id = f"ftjob-{uuid4().hex[:8]}"
    await voice.say("runner", recorded(job_id, range(1, 103)))
    query = "SELECT EXISTS (SELECT FROM tracker.waiting WHERE aggregate_id = $1)"
    await until(lambda: db.fetchval(query, job_id), "the first steps to wait")
    own = await asyncpg.connect(tracker.postgres_dsn("tracker"))
    await own.execute(HAS_NODES, job_id)
    await own.close()
    await voice.say("runner", recorded(job_id, range(103, 141)))
    await heard.until(job_id, "AlertRaised", "AlertCleared")
    assert {each.message.rule for each in heard.heard[job_id]} == {"loss_spike"}


@pytest.mark.parametrize("is_stopped_first", [False, True], ids=["failed", "stopped first"])
async def test_a_numeric_failure_is_raised_in_either_order(
    voice: Voices, heard: Ear, db, run: str, is_stopped_first: bool
):
    await voice.say("runner", recorded(run, range(1, 41)))
    await until_step(db, run, 40)
    if is_stopped_first:
        await voice.say(
            "trainer_agent", TrainingStopped(**of(run), reason="failure", last_step=40, bundle=None)
        )
    failure = {"failure_class": FailureClass.NUMERIC, "message": f"loss {math.nan}", "last_step": 40}
    await voice.say("trainer_agent", TrainingFailed(**of(run), **failure))
    await heard.until(run, "AlertRaised", "AlertCleared")
    assert {each.message.rule for each in heard.heard[run]} == {"not_finite"}


async def test_no_step_for_long_is_raised_without_any_news(
    tracker: Stack, voice: Voices, heard: Ear, db, run: str
):
    """The row says that its last step was heard a while ago; the process may be too young to have heard one since."""
    await voice.say("runner", recorded(run, range(1, 41)))
    await until_step(db, run, 40)
    own = await asyncpg.connect(tracker.postgres_dsn("tracker"))
    await own.execute(SILENT_FOR_A_MINUTE, run)
    await own.close()
    raised = await heard.until(run, "AlertRaised")
    assert (raised.rule, raised.step) == ("stall", 40)
    await voice.say("runner", recorded(run, [41]))
    await heard.until(run, "AlertRaised", "AlertCleared")
