"""S3, Kafka, Postgres or the hub is away, or Postgres starts again: nobody fails or is blamed, and everything continues automatically."""

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from deploy.local.stack import Stack
from schemas.artifacts import files_digest
from schemas.base import Delayed, FailureClass
from schemas.dataset import DatasetReady
from schemas.evaluation import EvalInconclusive
from schemas.job import JobEvaluating
from schemas.model import HubSource, RegisterBaseModel
from schemas.specification import DatasetSpec
from schemas.training import (
    RunnerHeartbeat,
    StepReached,
    StepsRecorded,
    TrainingCompleted,
    TrainingFailed,
    TrainingStopped,
)
from services.registry.model import model_id
from shared.storage.s3 import S3ObjectStore
from tests.chaos import pipeline
from tests.chaos.hub import COMMIT, REPOSITORY, Hub
from tests.chaos.proxies import LOOPBACK, TcpProxy
from tests.chaos.scale import note, scaled
from tests.chaos.without_kafka import kafka_down, until_kept
from tests.chaos.without_postgres import deaths_of, metric, postgres_down, until_missed
from tests.integration.evaluator_world import World as Gates
from tests.integration.evaluator_world import a_job, its_version
from tests.integration.kernel.conftest import until
from tests.integration.nodes import attempts, nodes
from tests.integration.registry_world import World as Registry
from tests.integration.registry_world import a_base_directory, entry
from tests.integration.test_ingest import Requests, a_spec
from tests.integration.voices import ear, voices

__all__ = ["attempts", "nodes"]

pytestmark = [pytest.mark.stack, pytest.mark.timeout(scaled(300, 300, 3600))]

AWAY = timedelta(seconds=scaled(10, 20, 600))
KAFKA_AWAY = timedelta(seconds=scaled(40, 40, 600))
"""Longer than a runner without a grant continues, and than the control side waits for a silent one."""
DIGEST = "c" * 64


@pytest.fixture
async def s3_line(stack: Stack) -> AsyncIterator[TcpProxy]:
    async with TcpProxy(stack.state.port("s3")) as line:
        yield line


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with Hub(a_base_directory(tmp_path / "hub", marker=uuid4().hex, more={})) as hub:
        yield hub


@pytest.fixture
async def service(request, stack: Stack, s3_line: TcpProxy, hub: Hub) -> AsyncIterator[str]:
    """The service that a test names, with S3 behind the line and the hub."""
    name, env = request.param
    endpoints = {
        f"{name.upper()}_S3_ENDPOINT": f"http://{LOOPBACK}:{s3_line.port}",
        "REGISTRY_HUB_ENDPOINT": hub.url,
    }
    await pipeline.migrated(stack, name)
    await stack.start(name, env=endpoints | env)
    await stack.wait_healthy(name)
    yield name
    deaths = deaths_of(stack, name)
    await stack.stop(name)
    assert deaths == {name: 0}, "a process must outlive every absence"


def of(name: str, env: Mapping[str, str] | None = None) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("service", [(name, env or {})], ids=[name], indirect=True)


async def outage(stack: Stack, db: asyncpg.Pool, s3_line: TcpProxy, service: str) -> None:
    """From the first task that waits; Postgres dies in the middle of it."""

    async def waits_for(seconds: float) -> bool:
        query = (
            f"SELECT EXISTS (SELECT FROM {service}.task WHERE away_since < clock_timestamp() - $1::interval)"
        )
        with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return await db.fetchval(query, timedelta(seconds=seconds))
        return False

    await until(lambda: waits_for(0), f"a task of {service} that waits")
    await stack.kill("postgres")
    stack._supervisor.child("postgres").restarts = 0
    await stack.wait_healthy("postgres")
    seconds = AWAY.total_seconds()
    await until(lambda: waits_for(seconds), "the end of the outage", patience_seconds=2 * seconds + 60)
    s3_line.heal()
    note("store away", seconds=seconds)


async def postgres_outage(stack: Stack, db: asyncpg.Pool, s3_line: TcpProxy, service: str) -> None:
    """In the middle of a task, which gets on with S3 while Postgres is down."""
    await until(lambda: is_at_work(db, service), f"a task of {service} at work")
    async with postgres_down(stack):
        s3_line.heal()
        await until_missed(stack, service, for_seconds=AWAY.total_seconds())
    note("Postgres away during tasks", seconds=AWAY.total_seconds())


async def kafka_outage(stack: Stack, db: asyncpg.Pool, s3_line: TcpProxy, service: str) -> None:
    """In the middle of a task, which ends while Kafka is down: what it says is kept, and nothing is done again."""

    async def has_ended() -> bool:
        return not await db.fetchval(f"SELECT EXISTS (SELECT FROM {service}.task)")

    await until(lambda: is_at_work(db, service), f"a task of {service} at work")
    async with kafka_down(stack):
        s3_line.heal()
        await until(has_ended, f"the task of {service} to end without Kafka")
        await until_kept(stack, service, for_seconds=AWAY.total_seconds())
    note("Kafka away during tasks", seconds=AWAY.total_seconds())


async def is_at_work(db: asyncpg.Pool, service: str) -> bool:
    query = f"SELECT EXISTS (SELECT FROM {service}.task WHERE lease_expires_at > clock_timestamp())"
    return await db.fetchval(query)


@of("ingest")
async def test_a_dataset_is_validated_once_the_store_is_back(stack, db, s3_line, service, tmp_path):
    async with Requests.on(stack, tmp_path) as requests:
        spec = await a_spec_of_a_new_base(requests)
        s3_line.refuse()
        dataset_id = await requests.submit(spec)
        delayed = await requests.until(dataset_id, Delayed)
        assert delayed.waiting_for == "the object store, which is away"
        await outage(stack, db, s3_line, service)
        await requests.until(dataset_id, DatasetReady)
        assert requests.story(dataset_id)[-1] == "DatasetReady"


@of("ingest")
async def test_a_dataset_is_validated_once_postgres_is_back(stack, db, s3_line, service, tmp_path):
    async with Requests.on(stack, tmp_path) as requests:
        spec = await a_spec_of_a_new_base(requests)
        s3_line.stall()
        dataset_id = await requests.submit(spec)
        await postgres_outage(stack, db, s3_line, service)
        await requests.until(dataset_id, DatasetReady)
        assert "DatasetRejected" not in requests.story(dataset_id)


@of("ingest")
async def test_a_dataset_is_validated_while_kafka_is_away(stack, db, s3_line, service, tmp_path):
    async with Requests.on(stack, tmp_path) as requests:
        spec = await a_spec_of_a_new_base(requests)
        s3_line.stall()
        dataset_id = await requests.submit(spec)
        await kafka_outage(stack, db, s3_line, service)
        await requests.until(dataset_id, DatasetReady)
        assert "DatasetRejected" not in requests.story(dataset_id)


async def a_spec_of_a_new_base(requests: Requests) -> DatasetSpec:
    base = await requests.base_model()
    await requests.write("registry", base)
    return await a_spec(requests, base, seed=1)


@of("registry", {"REGISTRY_COPY_ATTEMPTS": "2"})
async def test_what_was_trained_becomes_a_version_once_the_store_is_back(
    stack, db, s3_line, service, tmp_path
):
    async with a_registry(stack, tmp_path, base="tiny") as registry:
        job = await registry.train()
        s3_line.refuse()
        await registry.voices.say("scheduler", job)
        await registry.ear.until(job.job_id, "Delayed")
        await outage(stack, db, s3_line, service)
        await is_registered(registry, job)


@of("registry", {"REGISTRY_COPY_ATTEMPTS": "2"})
async def test_what_was_trained_becomes_a_version_once_postgres_is_back(
    stack, db, s3_line, service, tmp_path
):
    async with a_registry(stack, tmp_path, base="small") as registry:
        job = await registry.train()
        s3_line.stall()
        await registry.voices.say("scheduler", job)
        await postgres_outage(stack, db, s3_line, service)
        await is_registered(registry, job)


@of("registry", {"REGISTRY_COPY_ATTEMPTS": "2"})
async def test_what_was_trained_becomes_a_version_while_kafka_is_away(stack, db, s3_line, service, tmp_path):
    async with a_registry(stack, tmp_path, base="little") as registry:
        job = await registry.train()
        s3_line.stall()
        await registry.voices.say("scheduler", job)
        await kafka_outage(stack, db, s3_line, service)
        await is_registered(registry, job)


@of("registry", {"REGISTRY_COPY_ATTEMPTS": "2"})
async def test_a_base_model_is_imported_while_kafka_is_away(stack, db, s3_line, hub, service, tmp_path):
    async with a_registry(stack, tmp_path, base="beside") as registry:
        s3_line.stall()
        name = await ask_for_import(registry)
        await kafka_outage(stack, db, s3_line, service)
        await is_imported(registry, name, hub)


@of("registry", {"REGISTRY_COPY_ATTEMPTS": "2"})
@pytest.mark.parametrize("absence", [Hub.refuse, Hub.fail])
async def test_a_base_model_is_imported_once_the_hub_is_back(stack, db, hub, service, tmp_path, absence):
    async with a_registry(stack, tmp_path, base="other") as registry:
        absence(hub)
        name = await ask_for_import(registry)

        async def waits() -> bool:
            query = "SELECT failures FROM registry.task WHERE away_since < clock_timestamp() - $1::interval"
            counted = [row["failures"] for row in await db.fetch(query, AWAY)]
            return counted == [0] and await metric(stack, service, "tasks_waiting") == 1

        limit = 2 * AWAY.total_seconds() + 60
        await until(waits, "an import that waits and counts no failure", patience_seconds=limit)
        hub.come_back()
        await is_imported(registry, name, hub)
        note("hub away", seconds=AWAY.total_seconds())


async def ask_for_import(registry: Registry) -> str:
    name = f"of-the-hub-{uuid4().hex[:8]}"
    source = HubSource(repository=REPOSITORY, commit=COMMIT)
    await registry.voices.say("admin", RegisterBaseModel(name=name, source=source))
    return name


async def is_imported(registry: Registry, name: str, hub: Hub) -> None:
    known = await registry.ear.until(name, "BaseModelRegistered")
    paths = sorted(hub.directory.iterdir())
    assert known.base_sha == files_digest(tuple(entry(path, path.name) for path in paths))


@asynccontextmanager
async def a_registry(stack: Stack, folder: Path, *, base: str) -> AsyncIterator[Registry]:
    key = stack.s3_credentials("root")
    objects = S3ObjectStore(stack.s3_endpoint, key.access_key, key.secret_key, bucket=stack.s3_bucket)
    async with voices(stack) as speaking, ear(stack, "model.events") as heard:
        registry = Registry(speaking, heard, objects, folder)
        registry.base_sha = (await registry.register_base(base)).base_sha
        yield registry


async def is_registered(registry: Registry, job: JobEvaluating) -> None:
    await registry.ear.until(model_id(job.job_id, registry.digest(job)), "ModelRegistered")
    assert "PromotionRefused" not in registry.ear.types(job.job_id)


@of("evaluator", {"EVALUATOR_SCORING_ATTEMPTS": "1"})
async def test_a_gate_says_what_it_finds_once_the_store_is_back(stack, db, s3_line, service):
    async with Gates.on(stack) as gates:
        s3_line.refuse()
        job = await a_gate_without_its_suite(gates)
        await gates.until(
            lambda fact: isinstance(fact, Delayed) and fact.subject_id == job.job_id, "that the gate waits"
        )
        await outage(stack, db, s3_line, service)
        await it_says_what_it_finds(gates, job)


@of("evaluator", {"EVALUATOR_SCORING_ATTEMPTS": "1"})
async def test_a_gate_says_what_it_finds_once_postgres_is_back(stack, db, s3_line, service):
    async with Gates.on(stack) as gates:
        s3_line.stall()
        job = await a_gate_without_its_suite(gates)
        await postgres_outage(stack, db, s3_line, service)
        await it_says_what_it_finds(gates, job)


@of("evaluator", {"EVALUATOR_SCORING_ATTEMPTS": "1"})
async def test_a_gate_says_what_it_finds_while_kafka_is_away(stack, db, s3_line, service):
    async with Gates.on(stack) as gates:
        s3_line.stall()
        job = await a_gate_without_its_suite(gates)
        await kafka_outage(stack, db, s3_line, service)
        await it_says_what_it_finds(gates, job)


async def a_gate_without_its_suite(gates: Gates) -> JobEvaluating:
    """It was never registered, which the gate finds without a model."""
    job = a_job(base_sha=DIGEST, template_sha256=DIGEST, suites={"refusals": DIGEST})
    await gates.send("scheduler", job)
    await gates.send("registry", its_version(job, DIGEST))
    return job


async def it_says_what_it_finds(gates: Gates, job: JobEvaluating) -> None:
    verdict = await gates.until(
        lambda fact: isinstance(fact, EvalInconclusive) and fact.job_id == job.job_id, "a verdict"
    )
    assert "did not end" not in verdict.reason


@pytest.fixture(scope="module", autouse=True)
async def migrated(stack: Stack) -> None:
    await pipeline.migrated(stack, "trainer_agent")


async def test_a_runner_trains_once_the_store_is_back(stack, db, s3_line, attempts, nodes):
    scheduled = await attempts.schedule()
    s3_line.refuse()
    endpoint = f"http://{LOOPBACK}:{s3_line.port}"
    limit = f"PT{10 * AWAY.total_seconds():g}S"
    script = {"steps": 3, "every": 1}
    await nodes.start(scheduled, script=script, RUNNER_S3_ENDPOINT=endpoint, RUNNER_INPUTS_LIMIT=limit)
    # Two heartbeats a second.
    beats = int(2 * AWAY.total_seconds())
    await attempts.until(
        scheduled.job_id,
        RunnerHeartbeat,
        state="fetching",
        times=beats,
        seconds=3 * AWAY.total_seconds() + 60,
    )
    s3_line.heal()
    await attempts.until(scheduled.job_id, TrainingCompleted)
    assert attempts.heard(scheduled.job_id, TrainingFailed) == []


async def test_a_runner_trains_though_postgres_is_away_meanwhile(stack, s3_line, attempts, nodes):
    scheduled, deaths = await attempts.schedule(), deaths_of(stack, "trainer_agent")
    s3_line.refuse()
    endpoint = f"http://{LOOPBACK}:{s3_line.port}"
    limit = f"PT{10 * AWAY.total_seconds():g}S"
    script = {"steps": 3, "every": 1}
    await nodes.start(scheduled, script=script, RUNNER_S3_ENDPOINT=endpoint, RUNNER_INPUTS_LIMIT=limit)
    await attempts.until(scheduled.job_id, RunnerHeartbeat, state="fetching")
    async with postgres_down(stack):
        await until_missed(stack, "trainer_agent", for_seconds=AWAY.total_seconds() / 2)
        s3_line.heal()
        await until_missed(stack, "trainer_agent", for_seconds=AWAY.total_seconds())
    await attempts.until(scheduled.job_id, TrainingCompleted)
    assert attempts.heard(scheduled.job_id, TrainingFailed) == []
    assert deaths_of(stack, "trainer_agent") == deaths


async def test_a_runner_trains_though_kafka_is_away_meanwhile(stack, s3_line, attempts, nodes):
    """From before it has its inputs to its last step."""
    scheduled = await attempts.schedule()
    s3_line.refuse()
    endpoint = f"http://{LOOPBACK}:{s3_line.port}"
    limit = f"PT{10 * AWAY.total_seconds():g}S"
    steps = int(AWAY / timedelta(milliseconds=50))
    script = {"steps": steps, "seconds": 0.05, "every": 100}
    await nodes.start(scheduled, script=script, RUNNER_S3_ENDPOINT=endpoint, RUNNER_INPUTS_LIMIT=limit)
    await attempts.until(scheduled.job_id, RunnerHeartbeat, state="fetching")

    async def is_trained() -> bool:
        return nodes.steps(scheduled) >= steps

    async with kafka_down(stack):
        s3_line.heal()
        await until(is_trained, "all steps", patience_seconds=3 * AWAY.total_seconds() + 60)
    note("Kafka away during inputs", steps=steps)
    await attempts.until(scheduled.job_id, TrainingCompleted)
    assert attempts.heard(scheduled.job_id, TrainingFailed) == []


async def test_a_runner_that_cannot_wait_any_longer_blames_the_platform(stack, s3_line, attempts, nodes):
    scheduled = await attempts.schedule()
    s3_line.refuse()
    endpoint = f"http://{LOOPBACK}:{s3_line.port}"
    await nodes.start(scheduled, RUNNER_S3_ENDPOINT=endpoint, RUNNER_INPUTS_LIMIT="PT1S")
    failed = await attempts.until(scheduled.job_id, TrainingFailed)
    assert failed.failure_class is FailureClass.PLATFORM


async def test_training_continues_while_kafka_is_away(stack, attempts, nodes):
    scheduled = await attempts.schedule()
    await nodes.start(scheduled, script={"steps": 10**6, "seconds": 0.05, "every": 100})
    await attempts.until(scheduled.job_id, StepReached)

    async def is_trained_to(step: int) -> bool:
        return nodes.steps(scheduled) >= step

    def recorded() -> set[int]:
        batches = attempts.heard(scheduled.job_id, StepsRecorded)
        return {step.step for batch in batches for step in batch.steps}

    async with kafka_down(stack):
        # Each step takes 50 ms at least.
        last = nodes.steps(scheduled) + int(KAFKA_AWAY / timedelta(milliseconds=50))
        limit = 4 * KAFKA_AWAY.total_seconds()
        await until(lambda: is_trained_to(last), "training during the outage", patience_seconds=limit)
    began = time.monotonic()
    batches = len(attempts.heard(scheduled.job_id, StepsRecorded))
    await attempts.until(scheduled.job_id, StepsRecorded, times=batches + 1)
    note("kafka away during training", steps=last, seconds_until_heard=time.monotonic() - began)
    await attempts.stop(scheduled)
    stopped = await attempts.until(scheduled.job_id, TrainingStopped)
    assert (stopped.attempt, stopped.reason, stopped.bundle.step) == (1, "cancel", stopped.last_step)
    assert attempts.heard(scheduled.job_id, TrainingFailed) == []
    assert recorded() == set(range(1, stopped.last_step + 1))
