"""The scheduler as a process on the real stack; the other services are played by their Kafka users."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from uuid import uuid4

import asyncpg
import pytest

from deploy.local.stack import Stack
from schemas.alert import AlertRule, AlertsSpec
from schemas.artifacts import DatasetFiles
from schemas.base import BundleRef, CapacityType, CommandRefused, Message, StartFrom
from schemas.dataset import DatasetReady, DatasetRejected
from schemas.deployment import DeploymentReady
from schemas.job import (
    CancelJob,
    JobCancelled,
    JobScheduled,
    LimitDevices,
    ResumeJob,
    RetryJob,
    SubmitJob,
    WaitReason,
)
from schemas.node import PoolCapacityChanged
from schemas.specification import DpoSpec, Recipe, Resources, StageSpec
from tests.builders import NOON, TENANT, a_bundle, a_dataset, a_file_ref, a_job_spec, a_sha
from tests.integration.voices import Ear, Voices, ear, voices
from tests.unit.scheduler import incoming
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.stack

SUBMITTED = ("JobSubmitted", "JobQueued", "JobScheduled")


@pytest.fixture(scope="module")
async def scheduler(stack: Stack) -> AsyncIterator[Stack]:
    await stack.start("scheduler", env={"SCHEDULER_ANNOUNCE_EVERY": "PT0.5S"})
    await stack.wait_healthy("scheduler")
    yield stack
    await stack.stop("scheduler")


@pytest.fixture(scope="module")
async def voice(scheduler: Stack) -> AsyncIterator[Voices]:
    async with voices(scheduler) as voice:
        yield voice


@pytest.fixture(scope="module")
async def heard(scheduler: Stack) -> AsyncIterator[Ear]:
    async with ear(scheduler, "job.events") as heard:
        yield heard


@pytest.fixture(scope="module")
async def db(stack: Stack) -> AsyncIterator[asyncpg.Connection]:
    conn = await asyncpg.connect(stack.postgres_dsn("operator"))
    yield conn
    await conn.close()


class Play:
    """One job on a pool of its own."""

    def __init__(self, voice: Voices, heard: Ear) -> None:
        self.voice, self.heard = voice, heard
        mark = uuid4().hex[:8]
        self.job, self.dataset, self.pool = f"ftjob-{mark}", f"ds-{mark}", f"pool-{mark}"
        self.alerts: AlertsSpec | None = None
        self.max_cost: Decimal | None = None
        self.base = f"base-{mark}"  # a name that no other test registers with files of its own

    def submission(self, *, job_id: str = "", recipe: Recipe | None = None) -> SubmitJob:
        spec = a_job_spec(
            base_model=self.base,
            recipe=recipe or Recipe(),
            resources=Resources(pool=self.pool),
            alerts=self.alerts,
            max_cost=self.max_cost,
        )
        return SubmitJob(job_id=job_id or self.job, tenant=TENANT, dataset_id=self.dataset, spec=spec)

    def ready(self) -> DatasetReady:
        known = a_dataset()
        return DatasetReady(
            dataset_id=self.dataset,
            tenant=TENANT,
            dataset_version=known.ref.version,
            manifest_sha256=known.ref.manifest_sha256,
            base_sha=known.base_sha,
            template_sha256=known.template_sha256,
            counts=known.counts,
            benchmarks=known.benchmarks,
            suites=known.suites,
            files=known.files,
        )

    def capacity(self, nodes: int) -> PoolCapacityChanged:
        return PoolCapacityChanged(
            pool=self.pool,
            capacity_type=CapacityType.SPOT,
            nodes=nodes,
            free=nodes,
            devices_per_node=1,
            price_per_hour="0.1",
        )

    async def say(self, writer: str, *messages: Message) -> None:
        """Messages about `ftjob-1`, told of this job."""
        of_job = {"job_id": self.job}
        if messages and hasattr(messages[0], "eval_id"):
            of_job["eval_id"] = f"ev-{self.job}"
        if messages and hasattr(messages[0], "model_id"):
            of_job["model_id"] = f"mv-{self.job}"
        await self.voice.say(writer, *(message.model_copy(update=of_job) for message in messages))

    async def until(self, *types: str) -> Message:
        return await self.heard.until(self.job, *types)

    async def scheduled(self, nodes: int = 1) -> JobScheduled:
        await self.voice.say("gateway", self.submission())
        await self.voice.say("ingest", self.ready())
        await self.voice.say("provisioner", self.capacity(nodes))
        return await self.until(*SUBMITTED)

    async def running(self) -> None:
        await self.scheduled()
        await self.say("trainer_agent", incoming.started())
        await self.until(*SUBMITTED, "JobRunning")


@pytest.fixture
def play(voice: Voices, heard: Ear) -> Iterator[Play]:
    return Play(voice, heard)


def deployed(play: Play) -> DeploymentReady:
    return DeploymentReady(
        pool=f"serve-{play.job}",
        base_sha=a_sha("tiny"),
        slot=f"ft:{play.job}",
        tenant=TENANT,
        digest=incoming.MODEL.digest,
        generation=1,
        model_id=f"mv-{play.job}",
        served_name="name@digest",
        replicas=(),
    )


async def test_a_job_of_two_stages_is_scheduled_once_for_each(play, db):
    pairs = StageSpec(recipe=Recipe(method="dpo"), training_file=a_file_ref("pairs.jsonl"))
    asked = play.submission()
    asked = asked.model_copy(
        update={
            "spec": asked.spec.model_copy(update={"later_stages": (pairs,)}),
            "later_dataset_ids": (f"{play.dataset}-2",),
        }
    )
    await play.voice.say("gateway", asked)
    await play.voice.say("provisioner", play.capacity(1))
    await play.voice.say("ingest", play.ready())
    await play.until("JobSubmitted")
    files = DatasetFiles(training=pairs.training_file.sha256)
    second = play.ready().model_copy(
        update={"dataset_id": f"{play.dataset}-2", "dataset_version": a_sha("pairs"), "files": files}
    )
    await play.voice.say("ingest", second)
    first = await play.until(*SUBMITTED)
    assert (first.stage.number, first.resume, first.start_from) == (1, None, None)

    await play.say("trainer_agent", incoming.started(), incoming.written(), incoming.completed())
    await play.say("checkpoint_watcher", incoming.verified())
    await play.until(*SUBMITTED, "JobRunning", "JobStageCompleted")
    await play.say("provisioner", incoming.released())
    fact = await play.until(*SUBMITTED, "JobRunning", "JobStageCompleted", "JobScheduled")
    assert (fact.attempt, fact.stage.number, fact.steps_before, fact.resume) == (2, 2, 600, None)
    assert (fact.start_from.bundle, fact.dataset.version) == (incoming.FINAL, a_sha("pairs"))
    assert fact.spec.recipe.method == "dpo"
    plans = "SELECT jsonb_array_length(stage_plans) FROM scheduler.job WHERE id = $1"
    assert await db.fetchval(plans, play.job) == 2


async def test_a_job_from_submission_to_success(play: Play):
    await play.voice.say("gateway", play.submission())
    await play.until("JobSubmitted")
    await play.voice.say("ingest", play.ready())
    queued = await play.until("JobSubmitted", "JobQueued")
    assert "no pool can hold 1 device of one node" in queued.waiting_for
    assert queued.num_steps == 600
    await play.voice.say("provisioner", play.capacity(1))
    scheduled = await play.until(*SUBMITTED)
    assert (scheduled.attempt, scheduled.pool, scheduled.resume) == (1, play.pool, None)

    await play.say("trainer_agent", incoming.started())
    await play.until(*SUBMITTED, "JobRunning")
    await play.say("trainer_agent", incoming.written(), incoming.completed())
    await play.say("checkpoint_watcher", incoming.verified())
    evaluating = await play.until(*SUBMITTED, "JobRunning", "JobEvaluating")
    assert evaluating.bundle == incoming.FINAL

    slot = {"slot": f"ft:{play.job}"}
    await play.say("provisioner", incoming.released())
    await play.voice.say("serving_controller", deployed(play))
    await play.say("registry", incoming.registered(), incoming.promoted())
    await play.say("registry", incoming.approved().model_copy(update=slot))
    await play.say("evaluator", incoming.eval_passed())
    end = await play.until(*SUBMITTED, "JobRunning", "JobEvaluating", "JobSucceeded")
    assert (end.promoted, end.deployed, end.model_id) == (True, True, f"mv-{play.job}")
    sequences = [each.envelope.sequence for each in play.heard.heard[play.job]]
    assert sequences == list(range(1, 7))


async def test_the_dataset_may_be_ready_before_the_job_is_submitted(play: Play):
    await play.voice.say("provisioner", play.capacity(1))
    await play.voice.say("ingest", play.ready())
    await play.voice.say("gateway", play.submission())
    await play.until(*SUBMITTED)


@pytest.mark.parametrize("order", [1, -1], ids=["completed first", "verified first"])
async def test_completion_and_verdict_come_in_either_order(play: Play, order: int):
    await play.running()
    turns = [("trainer_agent", incoming.completed()), ("checkpoint_watcher", incoming.verified())]
    for writer, fact in turns[::order]:
        await play.say(writer, fact)
    await play.until(*SUBMITTED, "JobRunning", "JobEvaluating")


async def test_a_preempted_job_resumes_from_its_newest_verified_bundle(play: Play):
    await play.running()
    bundles: list[BundleRef] = [a_bundle(10), a_bundle(20)]
    await play.say("trainer_agent", *map(incoming.written, bundles))
    await play.say("checkpoint_watcher", *map(incoming.verified, bundles))
    await play.say("provisioner", incoming.preempted(deadline=NOON))
    await play.say("trainer_agent", incoming.stopped(bundles[-1]))
    stopping = await play.until(*SUBMITTED, "JobRunning", "JobStopping")
    assert stopping.reason == "preempt"
    await play.say("provisioner", incoming.released())
    types = (*SUBMITTED, "JobRunning", "JobStopping", "JobRequeued", "JobScheduled")
    again = await play.until(*types)
    assert (again.attempt, again.resume) == (2, a_bundle(20))


async def test_a_cancelled_job_is_continued_where_it_left_off(play: Play):
    await play.running()
    await play.say("trainer_agent", incoming.written(a_bundle(10)))
    await play.say("checkpoint_watcher", incoming.verified(a_bundle(10)))
    await play.voice.say("gateway", CancelJob(job_id=play.job, tenant=TENANT))
    await play.until(*SUBMITTED, "JobRunning", "JobStopping")
    await play.say("trainer_agent", incoming.stopped(a_bundle(10)))
    await play.say("provisioner", incoming.released())
    await play.until(*SUBMITTED, "JobRunning", "JobStopping", "JobCancelled")
    job_id = f"{play.job}-2"
    retry = RetryJob(job_id=play.job, tenant=TENANT, new_job_id=job_id, from_checkpoint=True)
    await play.voice.say("gateway", retry)
    scheduled = await play.heard.until(job_id, *SUBMITTED)
    theirs = a_bundle(10).model_copy(update={"job_id": play.job})
    assert (scheduled.attempt, scheduled.resume) == (1, theirs)
    assert play.heard.heard[job_id][0].message.resume == theirs


async def test_a_job_starts_from_what_another_one_of_its_tenant_trained(play: Play):
    await play.scheduled(nodes=2)
    start = StartFrom(name="ft:x", job_id=play.job, bundle=a_bundle(10), digest=a_sha("model"))
    submission = play.submission(job_id=f"{play.job}-2")
    spec = submission.spec.model_copy(update={"start_from": start})
    await play.voice.say("gateway", submission.model_copy(update={"spec": spec}))
    assert (await play.heard.until(submission.job_id, *SUBMITTED)).spec.start_from == start
    foreign = start.model_copy(update={"job_id": "ftjob-of-another"})
    spec = spec.model_copy(update={"start_from": foreign})
    command = submission.model_copy(update={"spec": spec, "job_id": f"{play.job}-3"})
    await play.voice.say("gateway", command)
    refused = await play.heard.until(command.job_id, "CommandRefused")
    assert (refused.code, refused.param) == ("unknown_start", "spec.start_from.job_id")


async def test_a_free_node_is_given_to_one_job_only(play: Play, db: asyncpg.Connection):
    jobs = [f"{play.job}-{number}" for number in range(4)]
    await play.voice.say("ingest", play.ready())
    for job in jobs:
        await play.voice.say("gateway", play.submission(job_id=job))
        await play.heard.until(job, "JobSubmitted", "JobQueued")
    await play.voice.say("provisioner", play.capacity(2))
    for job in jobs[:2]:
        await play.heard.until(job, *SUBMITTED)
    held = "SELECT count(*) FROM scheduler.attempt WHERE pool = $1 AND freed_at IS NULL"
    assert await db.fetchval(held, play.pool) == 2

    failed = incoming.provisioning_failed("engine_error").model_copy(update={"job_id": jobs[0]})
    await play.voice.say("provisioner", failed)
    await play.heard.until(jobs[0], *SUBMITTED, "JobRequeued", "JobScheduled")
    assert [play.heard.types(job) for job in jobs[2:]] == [["JobSubmitted", "JobQueued"]] * 2
    assert await db.fetchval(held, play.pool) == 2


async def test_what_a_round_does_with_a_job_belongs_to_the_request_of_that_job(play: Play):
    """Also where nodes that another one left, or a pool that came, were what it waited for."""
    await play.voice.say("ingest", play.ready())
    requests = {}
    for job in (f"{play.job}-0", f"{play.job}-1"):
        requests[job] = await play.voice.say("gateway", play.submission(job_id=job))
        await play.heard.until(job, "JobSubmitted", "JobQueued")
    await play.voice.say("provisioner", play.capacity(2))
    traces = set()
    for job, request_id in requests.items():
        await play.heard.until(job, *SUBMITTED)
        envelopes = [each.envelope for each in play.heard.heard[job]]
        assert {each.correlation_id for each in envelopes} == {request_id}
        (trace,) = {each.traceparent.split("-")[1] for each in envelopes}
        traces.add(trace)
    assert len(traces) == 2


async def test_the_position_of_a_waiting_job_is_published(play: Play, stack: Stack):
    async with ear(stack, "queue.events") as places:
        await play.scheduled()
        first, second = f"{play.job}-1", f"{play.job}-2"
        for job_id in (first, second):
            await play.voice.say("gateway", play.submission(job_id=job_id))
            await play.heard.until(job_id, "JobSubmitted", "JobQueued")
            await places.until(job_id, "QueuePositionChanged")
        place = places.last(first).position
        assert places.last(second).position == place + 1
        assert "0 of 1 device free" in places.last(second).waiting_for
        await play.voice.say("gateway", CancelJob(job_id=first, tenant=TENANT))
        moved = await places.until(second, "QueuePositionChanged", "QueuePositionChanged")
        assert moved.position == place


async def test_a_job_waits_while_its_tenant_has_all_devices_that_it_may(
    play: Play, stack: Stack, db: asyncpg.Connection
):
    tenant = f"t-{uuid4().hex[:8]}"
    first, second = f"{play.job}-1", f"{play.job}-2"
    async with ear(stack, "queue.events") as places:
        await play.voice.say("gateway", LimitDevices(tenant=tenant, devices=1))
        limit = "SELECT devices FROM scheduler.device_limit WHERE tenant = $1"
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await db.fetchval(limit, tenant) != 1:  # noqa: ASYNC110 - Postgres announces nothing
                await asyncio.sleep(0.05)
        await play.voice.say("ingest", play.ready().model_copy(update={"tenant": tenant}))
        await play.voice.say("provisioner", play.capacity(2))
        for job_id in (first, second):
            submission = play.submission(job_id=job_id).model_copy(update={"tenant": tenant})
            await play.voice.say("gateway", submission)
            await play.heard.until(job_id, *(SUBMITTED if job_id == first else SUBMITTED[:2]))
        place = await places.until(second, "QueuePositionChanged")
        assert (place.position, place.reason) == (None, WaitReason.QUOTA)
        assert place.waiting_for.endswith("its tenant has 1 device of 1 that it may have at once")
    await play.voice.say("gateway", LimitDevices(tenant=tenant, devices=None))
    await play.heard.until(second, *SUBMITTED)


async def test_a_second_job_of_the_same_configuration_names_the_first(play: Play):
    await play.scheduled()
    twin = f"{play.job}-twin"
    await play.voice.say("gateway", play.submission(job_id=twin))
    queued = await play.heard.until(twin, "JobSubmitted", "JobQueued")
    assert queued.duplicate_of is not None
    assert "0 of 1 device free" in queued.waiting_for


async def test_what_cannot_run_is_refused_by_name(play: Play):
    await play.voice.say("gateway", play.submission(recipe=Recipe(dpo=DpoSpec())))
    refused = await play.until("CommandRefused")
    assert isinstance(refused, CommandRefused)
    assert (refused.command, refused.code, refused.param) == (
        "SubmitJob",
        "dpo_ignored",
        "recipe.dpo",
    )


@pytest.mark.parametrize("job_id", ["x/../../../../etc/evil", "é" * 200, "-"])
async def test_an_id_that_could_lead_out_of_a_folder_is_refused_by_name(play: Play, job_id: str):
    hostile = f"{job_id}{play.job}"
    await play.voice.say("gateway", play.submission(job_id=hostile))
    refused = await play.heard.until(hostile, "CommandRefused")
    assert (refused.code, refused.param, refused.subject_id) == ("bad_job_id", "job_id", hostile)


async def test_commands_of_others_and_out_of_place_are_refused(play: Play):
    await play.scheduled()
    await play.voice.say("gateway", CancelJob(job_id=play.job, tenant="other"))
    assert (await play.until(*SUBMITTED, "CommandRefused")).code == "unknown_job"
    await play.voice.say("gateway", ResumeJob(job_id=play.job, tenant=TENANT))
    assert (await play.until(*SUBMITTED, "CommandRefused", "CommandRefused")).code == "not_paused"


@pytest.mark.parametrize("is_refused", [True, False], ids=["refused", "rejected"])
async def test_a_job_without_a_dataset_fails_as_the_users(play: Play, is_refused: bool):
    await play.voice.say("gateway", play.submission())
    rejected = DatasetRejected(dataset_id=play.dataset, tenant=TENANT, code="empty", message="no row is left")
    refused = CommandRefused(
        subject_id=play.dataset,
        command="SubmitDataset",
        command_id="c-1",
        code="unknown_base_model",
        message="base model tiny is not registered",
        tenant=TENANT,
    )
    await play.voice.say("ingest", refused if is_refused else rejected)
    failed = await play.until("JobSubmitted", "JobFailed")
    assert failed.failure_class == "user"
    assert failed.code == ("unknown_base_model" if is_refused else "dataset_empty")


@pytest.mark.parametrize("order", [1, -1], ids=["cancel first", "verdict first"])
async def test_a_cancel_that_races_completion_leads_to_one_end(play: Play, order: int):
    await play.running()
    await play.say("trainer_agent", incoming.completed())
    turns = [("gateway", incoming.cancel()), ("checkpoint_watcher", incoming.verified())]
    for writer, message in turns[::order]:
        await play.say(writer, message)
    await play.say("provisioner", incoming.released())
    await play.say("registry", incoming.registered(), incoming.promotion_refused())
    end = await play.heard.until_any(play.job, "JobCancelled", "JobSucceeded")
    if isinstance(end, JobCancelled):
        assert end.artifact.bundle == incoming.FINAL
        *before, came_first, _ = play.heard.types(play.job)
        assert (before, came_first in ("JobStopping", "JobEvaluating")) == ([*SUBMITTED, "JobRunning"], True)
    else:
        refused = await play.heard.until_any(play.job, "CommandRefused")
        assert refused.code == "too_late"
        assert play.heard.types(play.job).count("JobSucceeded") == 1


async def test_a_fact_of_an_old_attempt_is_recorded_and_moves_nothing(play: Play, db: asyncpg.Connection):
    await play.scheduled()
    await play.say("provisioner", incoming.provisioning_failed("engine_error"))
    await play.until(*SUBMITTED, "JobRequeued", "JobScheduled")
    await play.say("trainer_agent", incoming.started(attempt=1), incoming.started(attempt=2))
    await play.until(*SUBMITTED, "JobRequeued", "JobScheduled", "JobRunning")
    rows = await db.fetch("SELECT type, reason FROM scheduler.ignored WHERE job_id = $1", play.job)
    assert [tuple(row) for row in rows] == [("TrainingStarted", "attempt 1, present: 2")]


async def test_redelivery_changes_nothing(play: Play):
    await play.scheduled()
    again = await play.voice.say("trainer_agent", incoming.started().model_copy(update={"job_id": play.job}))
    await play.voice.say(
        "trainer_agent", incoming.started().model_copy(update={"job_id": play.job}), event_id=again
    )
    await play.say("trainer_agent", incoming.stopped())
    await play.until(*SUBMITTED, "JobRunning", "JobStopping")


async def test_killed_it_comes_back_and_continues(play: Play, scheduler: Stack):
    await play.scheduled()
    await scheduler.kill("scheduler", signal.SIGKILL)
    await play.say("trainer_agent", incoming.started(), incoming.written(), incoming.completed())
    await play.say("checkpoint_watcher", incoming.verified())
    await scheduler.wait_healthy("scheduler")
    await play.until(*SUBMITTED, "JobRunning", "JobEvaluating")


@pytest.mark.parametrize(("action", "end"), [("pause", "JobPaused"), ("stop", "JobCancelled")])
async def test_an_alert_does_what_the_job_asks(play: Play, action: str, end: str):
    play.alerts = AlertsSpec(divergence=action)
    await play.running()
    await play.say("tracker", incoming.alert(AlertRule.LOSS_SPIKE), incoming.alert())
    stopping = await play.until(*SUBMITTED, "JobRunning", "JobStopping")
    assert stopping.message == "alert divergence: loss 9, at its best 2"
    await play.say("trainer_agent", incoming.stopped())
    await play.say("provisioner", incoming.released())
    ended = await play.until(*SUBMITTED, "JobRunning", "JobStopping", end)
    assert ended.reason == "alert"
