"""Two messages about one thing, handled by two processes at once: one outcome, whichever commits first.

Each pair is delivered through two consumers on one Postgres, with a seeded lead of one over the other, so
that the transactions overlap everywhere from "one after the other" to "both read the same row".
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from deploy.local.stack import Stack
from ops.doctor.operator_views import read_unapplied
from schemas.base import Message
from schemas.dataset import DatasetReady
from schemas.deployment import DeploymentReady
from schemas.envelope import Envelope, to_headers
from schemas.evaluation import CheckResult
from schemas.job import SubmitJob
from schemas.lifecycle import JobState
from schemas.model import DeployModel, RollbackDeployment, Stage
from schemas.topics import NODE_EVENTS, Topic, topic_carrying, topic_of
from services.provisioner import store as provisioner_store
from services.provisioner.backends.protocol import AttemptStatus, Member, MemberState
from services.provisioner.decide import on_created, on_job_scheduled
from services.provisioner.handlers.cluster import Cluster
from services.provisioner.model import Attempt
from services.registry import store as registry_store
from services.registry.handlers import slots
from services.registry.model import BaseModel, Outcome, Verdict, Version
from services.scheduler import store as scheduler_store
from services.scheduler.decide.decision import Policy
from services.scheduler.handlers import register as register_scheduler
from services.scheduler.model import Approval, Dataset, DatasetState, Deployment, Facts, Job
from services.serving_controller import store as serving_store
from services.serving_controller.handlers.messages import Messages
from services.serving_controller.model import SlotState
from shared.clock import utc_now
from shared.messaging.consumer import Consumer
from shared.messaging.unit import Unit
from shared.postgres.database import Database
from shared.postgres.migrate import migrate
from shared.record import Record
from tests.builders import TENANT, a_bundle, a_dataset, a_job, a_job_spec, an_evaluation
from tests.chaos.scale import note, scaled, seed
from tests.integration import scheduler_rows
from tests.node_keys import NODE_KEYS
from tests.unit.provisioner import test_decide as provisioning
from tests.unit.registry.builders import BASE_SHA, a_version
from tests.unit.scheduler import incoming
from tests.unit.serving_controller import builders as serving

pytestmark = pytest.mark.stack

INTERLEAVINGS = scaled(150, 500, 5_000)
WRITE_SKEWS = scaled(50, 100, 5_000)
"""Each misses the other in one of a few where there is no lock."""
MAX_LEAD_SECONDS = 0.012
"""Longer than a handler's transaction takes here, so that some pairs do not overlap at all."""
OUTBOX = "SELECT type FROM outbox WHERE aggregate_id = $1 AND topic = $2 ORDER BY id"
APPROVALS = """
    SELECT (convert_from(value, 'UTF8')::jsonb ->> 'generation')::int AS generation,
           convert_from(value, 'UTF8')::jsonb ->> 'model_id' AS model_id
      FROM outbox WHERE type = 'DeploymentApproved' AND convert_from(value, 'UTF8')::jsonb ->> 'tenant' = $1
     ORDER BY id"""


class Wiring:
    """As much of a Service as `register` needs: it registers the handlers with a consumer."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def on(self, message: type[Message], handler: Any, *, topic: Topic | None = None) -> None:
        self._consumer.on((topic or topic_carrying(message)).name, message, handler)

    def on_timer(self, payload: type, handler: Any) -> None:
        """No timer fires here."""

    def on_task(self, payload: type, **_: Any) -> None:
        """A race is over before one begins."""

    def every(self, period: timedelta, function: Any, *, singleton: bool = False) -> None:
        """No loop runs here."""

    def on_lead(self, function: Any) -> None:
        """Nobody leads here."""


class Race:
    """Two processes of one service."""

    def __init__(self, service: str, database: Database, register: Callable[[Any], None]) -> None:
        self.database = database
        self.consumers = [Consumer(service, database, wake=lambda: None) for _ in range(2)]
        for consumer in self.consumers:
            register(Wiring(consumer))
        self.random = random.Random(seed())

    async def run(self, first: Record, second: Record) -> tuple[str, str]:
        """The outcomes, in the order of the arguments; either may have the lead."""
        self.lead = lead = self.random.uniform(-MAX_LEAD_SECONDS, MAX_LEAD_SECONDS)
        return tuple(
            await asyncio.gather(
                self._deliver(0, first, max(0.0, -lead)), self._deliver(1, second, max(0.0, lead))
            )
        )

    def describe(self, outcomes: tuple[str, str]) -> str:
        """For the message of a failed assertion."""
        return f"CHAOS_SEED={seed()}: {outcomes} at a lead of {self.lead * 1000:.2f} ms"

    async def _deliver(self, process: int, record: Record, after: float) -> str:
        await asyncio.sleep(after)
        return await self.consumers[process].consume(record)


def a_record(message: Message, writer: str, *, sequence: int = 1) -> Record:
    topic = topic_of(type(message), writer=writer)
    envelope = Envelope(
        id=uuid4().hex,
        type=message.type,
        version=message.version,
        source=f"/retune/{writer}",
        time=utc_now(),
        key=message.key,
        sequence=sequence if topic.is_event_stream else None,
    )
    headers = tuple(to_headers(envelope))
    return Record(topic.name, 0, 0, message.key.encode(), headers, message.model_dump_json().encode())


async def event_types(database: Database, key: str, topic: str) -> list[str]:
    return [row["type"] for row in await database.fetch(OUTBOX, key, topic)]


@pytest.fixture(scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """Its own: the jobs that it leaves behind would wait for other tests' nodes."""
    stack = Stack(tmp_path_factory.mktemp("interleavings"))
    await stack.up(())
    yield stack
    await stack.down()


@pytest.fixture
async def scheduler(stack: Stack) -> AsyncIterator[Race]:
    dsn = stack.postgres_dsn("scheduler")
    await migrate("scheduler", dsn)
    database = Database(dsn, application="interleavings")
    await database.open()
    yield Race("scheduler", database, lambda wiring: register_scheduler(wiring, Policy()))
    await database.close()


@pytest.fixture
async def registry(stack: Stack) -> AsyncIterator[Race]:
    dsn = stack.postgres_dsn("registry")
    await migrate("registry", dsn)
    database = Database(dsn, application="interleavings")
    await database.open()
    base = BaseModel("tiny", BASE_SHA, "a" * 64, "directory", "f" * 64, 512, 1)
    async with database.transaction() as conn:
        await registry_store.save_base_model(conn, base, {}, now=utc_now())
    yield Race("registry", database, slots.register)
    await database.close()


@pytest.fixture
async def serving_controller(stack: Stack) -> AsyncIterator[Race]:
    dsn = stack.postgres_dsn("serving_controller")
    await migrate("serving_controller", dsn)
    database = Database(dsn, application="interleavings")
    await database.open()
    yield Race("serving_controller", database, Messages(keep=timedelta(0)).register)
    await database.close()


@pytest.fixture
async def provisioner(stack: Stack) -> AsyncIterator[Database]:
    dsn = stack.postgres_dsn("provisioner")
    await migrate("provisioner", dsn)
    database = Database(dsn, application="interleavings")
    await database.open()
    yield database
    await database.close()


async def a_running_job(race: Race, **changes: Any) -> str:
    """A job of its own in `running`; its id."""
    return await a_stored_job(race, JobState.RUNNING, **changes)


async def a_stored_job(race: Race, state: JobState, **changes: Any) -> str:
    mark = uuid4().hex[:12]
    dataset = a_dataset(dataset_id=f"ds-{mark}")
    fields = {"id": f"ftjob-{mark}", "dataset_id": dataset.dataset_id, "dataset": dataset}
    job = a_job(state, **fields, **changes)
    async with race.database.transaction() as conn:
        await scheduler_store.save_dataset(conn, dataset)
        await scheduler_store.add_job(conn, replace(job, state=JobState.VALIDATING))
        await scheduler_rows.save(conn, job)
    return job.id


async def job_of(race: Race, job_id: str) -> Job:
    async with race.database.transaction() as conn:
        return await scheduler_store.find_job(conn, job_id)


def about(job_id: str, message: Any) -> Any:
    return message.model_copy(update={"job_id": job_id})


class TestCancelAndCompletion:
    async def test_the_job_is_cancelled_with_or_without_being_evaluated_first(self, scheduler: Race):
        decided = Counter([await self.one_race(scheduler) for _ in range(INTERLEAVINGS)])
        assert min(decided["evaluated"], decided["cancelled"]) > INTERLEAVINGS // 20, decided
        note("cancel and complete", **decided)

    async def one_race(self, race: Race) -> str:
        job_id = await a_running_job(race, verified=frozenset({incoming.FINAL}))
        cancel = a_record(about(job_id, incoming.cancel()), "gateway")
        complete = a_record(about(job_id, incoming.completed()), "trainer_agent")
        outcomes = await race.run(cancel, complete)
        assert outcomes == ("applied", "applied"), race.describe(outcomes)
        if (await job_of(race, job_id)).state is JobState.CANCELLED:
            assert await event_types(race.database, job_id, "job.events") == ["JobEvaluating", "JobCancelled"]
            return "evaluated"
        assert (
            await race.consumers[0].consume(a_record(about(job_id, incoming.released()), "provisioner"))
            == "applied"
        )
        assert (await job_of(race, job_id)).state is JobState.CANCELLED, race.describe(outcomes)
        assert await event_types(race.database, job_id, "job.events") == ["JobStopping", "JobCancelled"]
        return "cancelled"


class TestPreemptionAndCheckpoint:
    async def test_the_job_stops_once_and_resumes_from_the_newest(self, scheduler: Race):
        for _ in range(INTERLEAVINGS):
            await self.one_race(scheduler)
        note("preempt and checkpoint", races=INTERLEAVINGS)

    async def one_race(self, race: Race) -> None:
        older, newer = a_bundle(10), a_bundle(20)
        facts = Facts(started=True, named=frozenset({older, newer}))
        job_id = await a_running_job(race, facts=facts, verified=frozenset({older}))
        outcomes = await race.run(
            a_record(about(job_id, incoming.preempted()), "provisioner"),
            a_record(about(job_id, incoming.verified(newer)), "checkpoint_watcher"),
        )
        job = await job_of(race, job_id)
        assert (outcomes, job.state, job.resume) == (
            ("applied", "applied"),
            JobState.STOPPING,
            newer,
        ), race.describe(outcomes)
        assert await event_types(race.database, job_id, "job.events") == ["JobStopping"]
        await race.run(
            a_record(about(job_id, incoming.released()), "provisioner", sequence=2),
            a_record(about(job_id, incoming.stopped(newer, last_step=20)), "trainer_agent"),
        )
        assert (await job_of(race, job_id)).state is JobState.QUEUED
        assert await event_types(race.database, job_id, "job.events") == ["JobStopping", "JobRequeued"]


class TestPromotionAndRollback:
    """The alias has served version 1 and serves version 2; version 3 is deployed while a person rolls back."""

    async def test_every_decision_is_a_generation_and_the_last_one_stands(self, registry: Race):
        histories = Counter([await self.one_race(registry) for _ in range(INTERLEAVINGS)])
        assert set(histories) == {(1, 2, 3, 2), (1, 2, 1, 3)}, histories
        assert min(histories.values()) > INTERLEAVINGS // 20, histories
        note(
            "promote and roll back",
            promoted_first=histories[1, 2, 3, 2],
            rolled_back_first=histories[1, 2, 1, 3],
        )

    async def one_race(self, race: Race) -> tuple[int, ...]:
        mark = uuid4().hex[:12]
        tenant, alias = f"t-{mark}", "support"
        versions = [await self.in_production(race, tenant, mark, number) for number in (1, 2, 3)]
        await self.has_served(race, tenant, alias, versions[:2])
        deploy = DeployModel(model_id=versions[2].model_id, tenant=tenant, slot=alias)
        roll_back = RollbackDeployment(slot=alias, tenant=tenant)
        outcomes = await race.run(a_record(deploy, "gateway"), a_record(roll_back, "gateway"))
        assert outcomes == ("applied", "applied"), race.describe(outcomes)
        async with race.database.transaction() as conn:
            slot = await registry_store.get_slot(conn, tenant, alias)
        assert [known.number for known in slot.generations] == [1, 2, 3, 4], race.describe(outcomes)
        rows = await race.database.fetch(APPROVALS, tenant)
        approved = [(row["generation"], row["model_id"]) for row in rows]
        assert approved == [(known.number, known.model_id) for known in slot.generations[2:]]
        ids = [version.model_id for version in versions]
        return tuple(ids.index(known.model_id) + 1 for known in slot.generations)

    async def in_production(self, race: Race, tenant: str, mark: str, number: int) -> Version:
        version = a_version(
            number, model_id=f"mv-{mark}-{number}", job_id=f"ftjob-{mark}-{number}", tenant=tenant
        )
        verdict = Verdict(f"eval-{number}", "passed", (CheckResult(check="holdout", outcome="passed"),))
        gated = replace(version, stage=Stage.PRODUCTION, eval_id=verdict.eval_id, verdict=verdict, revision=1)
        async with race.database.transaction() as conn:
            await registry_store.add_version(conn, version, now=utc_now())
            await registry_store.save_version(conn, gated)
        return gated

    async def has_served(self, race: Race, tenant: str, alias: str, versions: list[Version]) -> None:
        async with race.database.transaction() as conn:
            slot = await registry_store.get_slot(conn, tenant, alias)
            for version in versions:
                slot = slot.approve(version)
                slot = slot.answered(slot.generation, Outcome.READY)
            await registry_store.save_slot(conn, slot)


class TestSubmissionAndDataset:
    """The dataset is known already, so its answer comes right behind the submission, on another topic."""

    async def test_a_job_is_queued_whichever_comes_first(self, scheduler: Race):
        for _ in range(WRITE_SKEWS):
            await self.one_race(scheduler)
        note("submission and dataset", races=WRITE_SKEWS)

    async def one_race(self, race: Race) -> None:
        mark = uuid4().hex[:12]
        dataset = a_dataset(dataset_id=f"ds-{mark}")
        submit = SubmitJob(
            job_id=f"ftjob-{mark}", tenant=TENANT, dataset_id=dataset.dataset_id, spec=a_job_spec()
        )
        outcomes = await race.run(a_record(submit, "gateway"), a_record(ready(dataset), "ingest"))
        assert outcomes == ("applied", "applied"), race.describe(outcomes)
        assert (await job_of(race, submit.job_id)).state is JobState.QUEUED, race.describe(outcomes)


def ready(dataset: Dataset) -> DatasetReady:
    assert dataset.ref is not None
    assert dataset.counts is not None
    return DatasetReady(
        dataset_id=dataset.dataset_id,
        tenant=dataset.tenant,
        dataset_version=dataset.ref.version,
        manifest_sha256=dataset.ref.manifest_sha256,
        base_sha=dataset.base_sha,
        template_sha256=dataset.template_sha256,
        counts=dataset.counts,
        benchmarks=dict(dataset.benchmarks),
        suites=dict(dataset.suites),
        files=dataset.files,
    )


class TestApprovalAndReadiness:
    async def test_a_served_model_is_known_to_be_served(self, scheduler: Race):
        for _ in range(WRITE_SKEWS):
            await self.one_race(scheduler)
        note("approval and readiness", races=WRITE_SKEWS)

    async def one_race(self, race: Race) -> None:
        gated = an_evaluation(passed=True, promoted=True, gated_at=utc_now())
        job_id = await a_stored_job(race, JobState.EVALUATING, evaluation=gated)
        approved = about(job_id, incoming.approved()).model_copy(update={"slot": job_id})
        served = DeploymentReady(
            pool=f"serve-{job_id}",
            base_sha=approved.base_sha,
            slot=approved.slot,
            tenant=approved.tenant,
            digest=approved.digest,
            generation=approved.generation,
            model_id=approved.model_id,
            served_name=f"{job_id}@{approved.digest}",
            replicas=(),
        )
        outcomes = await race.run(a_record(approved, "registry"), a_record(served, "serving_controller"))
        assert outcomes == ("applied", "applied"), race.describe(outcomes)
        assert (await job_of(race, job_id)).state is JobState.SUCCEEDED, race.describe(outcomes)


class TestDoctor:
    """What a race without its lock would leave is found at once, and what lasts by right is not."""

    async def test_a_validating_job_whose_dataset_is_decided(self, scheduler: Race):
        job_id = await a_stored_job(scheduler, JobState.VALIDATING, plan=None)
        job = await job_of(scheduler, job_id)
        assert await unapplied(scheduler, job_id) == f"dataset {job.dataset_id} is ready"
        async with scheduler.database.transaction() as conn:
            await scheduler_store.save_dataset(conn, replace(job.dataset, state=DatasetState.ACCEPTED))
        assert await unapplied(scheduler, job_id) is None

    @pytest.mark.parametrize(("promoted", "answered"), [(True, 3), (True, 2), (False, 3)])
    async def test_an_evaluating_job_whose_deployment_is_answered(
        self, scheduler: Race, promoted: bool, answered: int
    ):
        slot = uuid4().hex
        gated = an_evaluation(passed=True, promoted=promoted, approval=Approval(slot, 3), gated_at=utc_now())
        job_id = await a_stored_job(scheduler, JobState.EVALUATING, evaluation=gated)
        async with scheduler.database.transaction() as conn:
            await scheduler_store.save_deployment(conn, Deployment(slot, TENANT, answered, is_ready=True))
        known = f"serving has answered for slot {slot}, generation {answered}"
        assert await unapplied(scheduler, job_id) == (known if promoted and answered == 3 else None)


async def unapplied(race: Race, job_id: str) -> str | None:
    async with race.database.transaction() as conn:
        return (await read_unapplied(conn)).get(job_id)


class TestExitSeenByBoth:
    """Every process of the provisioner watches the engine."""

    async def test_a_node_is_lost_once(self, provisioner: Database):
        for _ in range(INTERLEAVINGS // 10):
            await self.one_race(provisioner)

    async def one_race(self, database: Database) -> None:
        attempt = await a_running_attempt(database)
        gone = AttemptStatus(attempt.name, (Member(0, MemberState.ENDED, 1), Member(1, MemberState.ENDED, 1)))
        units = Units(database)
        cluster = Cluster(units, backends=None, node_keys=NODE_KEYS, observe_other=of_nobody)  # type: ignore[arg-type]
        await asyncio.gather(*(cluster._observed(gone) for _ in range(2)))
        assert await event_types(database, attempt.job_id, NODE_EVENTS.name) == ["NodeLost", "NodeLost"]


async def of_nobody(unit: Unit, status: AttemptStatus) -> bool:
    raise AssertionError(f"an attempt has the name {status.name}")


class Units:
    """As much of a Service as a loop needs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @asynccontextmanager
    async def unit(self) -> AsyncIterator[Unit]:
        async with self._database.transaction() as conn:
            yield Unit(conn, "provisioner", utc_now())


async def a_running_attempt(database: Database) -> Attempt:
    """On two nodes of a pool of its own."""
    mark = uuid4().hex[:12]
    pool = provisioning.a_pool(name=f"pool-{mark}")
    scheduled = provisioning.a_schedule(job_id=f"ftjob-{mark}", pool=pool.name, nodes=2)
    reserved = on_job_scheduled(scheduled, pool, now=utc_now()).attempt
    attempt = on_created(reserved, has_nodes=True, now=utc_now()).attempt
    async with database.transaction() as conn:
        await provisioner_store.save_pool(conn, pool)
        await provisioner_store.save_attempt(conn, None, attempt)
    return attempt


class TestApprovalAndStaleBase:
    async def test_nothing_on_other_files_waits_to_be_served(self, serving_controller: Race):
        for _ in range(WRITE_SKEWS):
            await self.one_race(serving_controller)
        note("approval and stale base", races=WRITE_SKEWS)

    async def one_race(self, race: Race) -> None:
        mark = uuid4().hex[:12]
        version = serving.a_servable(model_id=f"mv-{mark}", base_model=f"base-{mark}")
        async with race.database.transaction() as conn:
            await serving_store.save_model_name(conn, version.model_id, version.full_name)
        outcomes = await race.run(
            a_record(serving.approved(version, slot=f"slot-{mark}"), "registry"),
            a_record(serving.stale(version.base_model), "registry"),
        )
        assert outcomes == ("applied", "applied"), race.describe(outcomes)
        async with race.database.transaction() as conn:
            slot = await serving_store.get_slot(conn, "acme", f"slot-{mark}")
        assert slot.state is SlotState.FAILED, race.describe(outcomes)
