"""S3, Kafka, Postgres or the hub is away, or Postgres starts again: nobody fails or is blamed, and everything continues automatically.

One absence strikes all that is under way at the same time, and each test asserts what became of one of them.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta

import asyncpg
import pytest

from deploy.local.stack import Stack
from schemas.base import FailureClass
from schemas.training import StepsRecorded, TrainingFailed, TrainingStopped
from tests.chaos.hub import Hub
from tests.chaos.scale import note, scaled
from tests.chaos.under_way import SETTINGS, STEP, Copy, Gate, Import, Run, Validation, World, under_way
from tests.chaos.without_kafka import kafka_down, until_kept
from tests.chaos.without_postgres import deaths_of, metric, postgres_down, until_missed
from tests.integration.attempts import Attempts
from tests.integration.nodes import attempts
from tests.waiting import until

__all__ = ["attempts"]

pytestmark = [pytest.mark.stack, pytest.mark.timeout(scaled(1200, 1200, 3600))]

AWAY = timedelta(seconds=scaled(6, 20, 600))
KAFKA_AWAY = timedelta(seconds=scaled(35, 40, 600))
"""Longer than a runner without a grant continues, and than the control side waits for a silent one."""
LIMIT_SECONDS = 60 + 3 * max(AWAY, KAFKA_AWAY).total_seconds()
INPUTS_LIMIT = 10 * AWAY
HEARTBEATS_PER_SECOND = 2
SERVICES = (*SETTINGS, "trainer_agent")
ENDLESS = 10**6
BEGUN = "EXISTS (SELECT FROM {task} AND (lease_expires_at > clock_timestamp() OR away_since IS NOT NULL))"
"""At work, or waiting for its next try after a request that the stalled line has not answered in time."""
ENDED = "NOT EXISTS (SELECT FROM {task})"

Task = Validation | Copy | Import | Gate


@pytest.fixture(scope="module")
async def world(
    stack: Stack, attempts: Attempts, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    async with under_way(stack, attempts, tmp_path_factory.mktemp("absences")) as world:
        yield world


@dataclass(frozen=True)
class Struck:
    """What an absence that is over has struck."""

    validation: Validation
    copy: Copy
    gate: Gate
    inputs: Run
    base: Import | None = None
    unmet: dict[str, str] = field(default_factory=dict)
    """By task, what was waited for in vain; the others are struck all the same."""

    @property
    def tasks(self) -> Sequence[Task]:
        return (self.validation, self.copy, self.gate, *([self.base] if self.base else []))

    async def until_all(self, db: asyncpg.Pool, condition: str) -> None:
        """Each of the tasks meets it, or becomes one of `unmet`."""
        left = [task for task in self.tasks if str(task) not in self.unmet]

        async def none_is_left() -> bool:
            with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                left[:] = [task for task in left if not await meets(db, task, condition)]
            return not left

        try:
            await until(none_is_left, condition, seconds=LIMIT_SECONDS)
        except AssertionError as error:
            self.unmet.update({str(task): str(error) for task in left})

    async def ends_well(self, task: Task) -> None:
        assert str(task) not in self.unmet, f"{task}: {self.unmet[str(task)]}"
        await task.ends_well()


async def to_strike(world: World, *, steps: int, every: int) -> Struck:
    """Prepared, not begun."""
    return Struck(
        validation=await world.validation(),
        copy=await world.copy(),
        gate=world.gate(),
        inputs=await world.run(steps=steps, every=every, inputs_limit=INPUTS_LIMIT),
    )


async def begin(*works: Task | Run) -> None:
    await asyncio.gather(*(work.begin() for work in works))


@dataclass(frozen=True)
class OfStore:
    struck: Struck
    impatient: Run
    """Its limit for inputs is a second."""


@pytest.fixture(scope="module")
async def without_store(world: World, db: asyncpg.Pool) -> OfStore:
    """From the first task that waits; Postgres dies in the middle of it."""
    struck = await to_strike(world, steps=3, every=1)
    impatient = await world.run(steps=3, every=1, inputs_limit=timedelta(seconds=1))
    world.line.refuse()
    world.runners_line.refuse()
    try:
        await begin(*struck.tasks, struck.inputs, impatient)
        await struck.until_all(db, waiting(0))
        began = time.monotonic()
        await world.stack.kill("postgres")
        world.stack._supervisor.child("postgres").restarts = 0
        await world.stack.wait_healthy("postgres")
        # So long after Postgres is back: the tasks try again meanwhile.
        seconds = time.monotonic() - began + AWAY.total_seconds()
        await struck.until_all(db, waiting(seconds))
        await struck.inputs.fetches(heartbeats=int(HEARTBEATS_PER_SECOND * seconds), seconds=LIMIT_SECONDS)
    finally:
        world.heal()
    return OfStore(struck, impatient)


async def meets(db: asyncpg.Pool, task: Task, condition: str) -> bool:
    return await db.fetchval(f"SELECT {condition.format(task=task.row)}", task.subject)


def waiting(seconds: float) -> str:
    return f"EXISTS (SELECT FROM {{task}} AND away_since < clock_timestamp() - interval '{seconds} s')"


def seen_without_store() -> None:
    note("store away", seconds=AWAY.total_seconds())


async def test_a_dataset_is_validated_once_the_store_is_back(without_store: OfStore):
    await without_store.struck.ends_well(without_store.struck.validation)
    await without_store.struck.validation.is_delayed()
    seen_without_store()


async def test_what_was_trained_becomes_a_version_once_the_store_is_back(without_store: OfStore):
    await without_store.struck.ends_well(without_store.struck.copy)
    await without_store.struck.copy.is_delayed()
    seen_without_store()


async def test_a_gate_says_what_it_finds_once_the_store_is_back(without_store: OfStore):
    await without_store.struck.ends_well(without_store.struck.gate)
    await without_store.struck.gate.is_delayed()
    seen_without_store()


async def test_a_runner_trains_once_the_store_is_back(without_store: OfStore):
    await without_store.struck.inputs.ends_well()


async def test_a_runner_that_cannot_wait_any_longer_blames_the_platform(
    without_store: OfStore, attempts: Attempts
):
    failed = await attempts.until(without_store.impatient.job_id, TrainingFailed)
    assert failed.failure_class is FailureClass.PLATFORM


@pytest.fixture(scope="module")
async def without_postgres(world: World, db: asyncpg.Pool) -> Struck:
    """In the middle of tasks, which get on with S3 while Postgres is down, as does a runner halfway through."""
    struck = await to_strike(world, steps=3, every=1)
    world.line.stall()
    world.runners_line.refuse()
    try:
        await begin(*struck.tasks, struck.inputs)
        await struck.until_all(db, BEGUN)
        await struck.inputs.fetches(heartbeats=1, seconds=LIMIT_SECONDS)
        async with postgres_down(world.stack):
            world.line.heal()
            await until_missed(world.stack, *SERVICES, for_seconds=AWAY.total_seconds())
            world.runners_line.heal()
            await until_trained(struck.inputs, struck.inputs.steps)
    finally:
        world.heal()
    return struck


def seen_without_postgres() -> None:
    note("Postgres away during tasks", seconds=AWAY.total_seconds())


async def test_a_dataset_is_validated_once_postgres_is_back(without_postgres: Struck):
    await without_postgres.ends_well(without_postgres.validation)
    seen_without_postgres()


async def test_what_was_trained_becomes_a_version_once_postgres_is_back(without_postgres: Struck):
    await without_postgres.ends_well(without_postgres.copy)
    seen_without_postgres()


async def test_a_gate_says_what_it_finds_once_postgres_is_back(without_postgres: Struck):
    await without_postgres.ends_well(without_postgres.gate)
    seen_without_postgres()


async def test_a_runner_trains_though_postgres_is_away_meanwhile(without_postgres: Struck):
    await without_postgres.inputs.ends_well()


@dataclass(frozen=True)
class OfKafka:
    struck: Struck
    training: Run
    steps: int
    """Trained at the end of the absence."""
    seconds_until_heard: float


@pytest.fixture(scope="module")
async def without_kafka(world: World, db: asyncpg.Pool) -> OfKafka:
    """In the middle of tasks, which end while Kafka is down: what they say is kept, and nothing is done again."""
    training = await world.run(steps=ENDLESS, every=100, inputs_limit=INPUTS_LIMIT)
    await training.begin()
    await training.trains()
    struck = replace(await to_strike(world, steps=int(AWAY / STEP), every=100), base=world.hub_import())
    world.line.stall()
    world.runners_line.refuse()
    try:
        await begin(*struck.tasks, struck.inputs)
        await struck.until_all(db, BEGUN)
        await struck.inputs.fetches(heartbeats=1, seconds=LIMIT_SECONDS)
        async with kafka_down(world.stack):
            world.heal()
            # Each step takes 50 ms at least.
            last = training.num_steps + int(KAFKA_AWAY / STEP)
            await struck.until_all(db, ENDED)
            await until_trained(struck.inputs, struck.inputs.steps)
            await until_trained(training, last)
            for service in SETTINGS:
                await until_kept(world.stack, service, for_seconds=AWAY.total_seconds())
    finally:
        world.heal()
    began, batches = time.monotonic(), len(training.batches())
    await training.attempts.until(training.job_id, StepsRecorded, times=batches + 1)
    return OfKafka(struck, training, last, time.monotonic() - began)


async def until_trained(run: Run, steps: int) -> None:
    async def is_trained() -> bool:
        return run.num_steps >= steps

    await until(is_trained, f"{steps} steps of {run.job_id} meanwhile", seconds=LIMIT_SECONDS)


def seen_without_kafka() -> None:
    note("Kafka away during tasks", seconds=KAFKA_AWAY.total_seconds())


async def test_a_dataset_is_validated_while_kafka_is_away(without_kafka: OfKafka):
    await without_kafka.struck.ends_well(without_kafka.struck.validation)
    seen_without_kafka()


async def test_what_was_trained_becomes_a_version_while_kafka_is_away(without_kafka: OfKafka):
    await without_kafka.struck.ends_well(without_kafka.struck.copy)
    seen_without_kafka()


async def test_a_base_model_is_imported_while_kafka_is_away(without_kafka: OfKafka):
    struck = without_kafka.struck
    assert struck.base is not None
    await struck.ends_well(struck.base)
    seen_without_kafka()


async def test_a_gate_says_what_it_finds_while_kafka_is_away(without_kafka: OfKafka):
    await without_kafka.struck.ends_well(without_kafka.struck.gate)
    seen_without_kafka()


async def test_a_runner_trains_though_kafka_is_away_meanwhile(without_kafka: OfKafka):
    """From before it has its inputs to its last step."""
    note("Kafka away during inputs", steps=without_kafka.struck.inputs.steps)
    await without_kafka.struck.inputs.ends_well()


async def test_training_continues_while_kafka_is_away(without_kafka: OfKafka, attempts: Attempts):
    training = without_kafka.training
    note(
        "kafka away during training",
        steps=without_kafka.steps,
        seconds_until_heard=without_kafka.seconds_until_heard,
    )
    await attempts.stop(training.scheduled)
    stopped = await attempts.until(training.job_id, TrainingStopped)
    assert (stopped.attempt, stopped.reason, stopped.bundle.step) == (1, "cancel", stopped.last_step)
    training.require_no_failure()
    recorded = {step.step for batch in training.batches() for step in batch.steps}
    assert recorded == set(range(1, stopped.last_step + 1))


@pytest.mark.parametrize("absence", [Hub.refuse, Hub.fail])
async def test_a_base_model_is_imported_once_the_hub_is_back(world: World, db: asyncpg.Pool, absence):
    base = world.hub_import()
    absence(world.hub)
    await base.begin()

    async def waits() -> bool:
        query = "SELECT failures FROM registry.task WHERE away_since < clock_timestamp() - $1::interval"
        counted = [row["failures"] for row in await db.fetch(query, AWAY)]
        return counted == [0] and await metric(world.stack, "registry", "tasks_waiting") == 1

    await until(waits, "an import that waits and counts no failure", seconds=LIMIT_SECONDS)
    world.hub.come_back()
    await base.ends_well()
    note("hub away", seconds=AWAY.total_seconds())


async def test_every_process_has_outlived_every_absence(world: World):
    assert deaths_of(world.stack, *SERVICES) == dict.fromkeys(SERVICES, 0)
