"""The checkpoint watcher with the scheduler on real Kafka, Postgres and S3; all others are played.

The watcher runs in this process, so that its store can be taken away and given back.
"""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from deploy.local.stack import Stack
from schemas import layout
from schemas.artifacts import BundleManifest, FileEntry
from schemas.base import BundleRef, FailureClass, Message
from schemas.checkpoint import CheckpointExpired, CheckpointOverdue, CheckpointVerified
from schemas.job import JobRequeued, JobScheduled
from schemas.specification import CheckpointSpec, Method, Recipe
from services.checkpoint_watcher import handlers
from services.checkpoint_watcher.settings import Settings
from shared.clock import utc_now
from shared.errors import StorageUnavailable
from shared.postgres.migrate import migrate
from shared.service import Service
from shared.storage.objects import put_manifest
from shared.storage.s3 import S3ObjectStore
from tests.builders import TENANT, a_bundle, a_dataset_ref, a_job_spec, a_sha
from tests.integration.test_scheduler import Play
from tests.integration.voices import Ear, Voices, ear, voices
from tests.unit.scheduler import incoming
from tests.waiting import until

pytestmark = pytest.mark.stack

PARTS = {"model/adapter_model.safetensors": b"weights", "state.json": b"{}"}


class Outages:
    """The watcher's store, which can be away for some of its calls."""

    def __init__(self, objects: S3ObjectStore) -> None:
        self._objects = objects
        self.away: frozenset[str] = frozenset()
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        call: Callable[..., Awaitable[Any]] = getattr(self._objects, name)

        async def called(*args: Any, **options: Any) -> Any:
            if name in self.away:
                self.refused += 1
                raise StorageUnavailable(f"{name}: the store is away")
            return await call(*args, **options)

        return called

    def go(self, *calls: str) -> None:
        self.away, self.refused = frozenset(calls), 0


@pytest.fixture(scope="module")
async def outages(stack: Stack) -> AsyncIterator[Outages]:
    env = stack.service_env("checkpoint_watcher")
    await migrate("checkpoint_watcher", env["CHECKPOINT_WATCHER_POSTGRES_DSN"])
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        patch.setenv("CHECKPOINT_WATCHER_TRY_AGAIN_AFTER", "PT0.1S")
        settings = Settings()
    service = Service("checkpoint_watcher", settings)
    outages = Outages(S3ObjectStore.from_settings(settings))
    service.objects = outages
    handlers.register(service, settings)
    async with service.running():
        yield outages


@pytest.fixture(scope="module")
async def voice(stack: Stack) -> AsyncIterator[Voices]:
    async with voices(stack) as voice:
        yield voice


@pytest.fixture(scope="module")
async def heard(stack: Stack) -> AsyncIterator[Ear]:
    async with ear(stack, "job.events") as heard:
        yield heard


@pytest.fixture(scope="module")
async def verdicts(stack: Stack) -> AsyncIterator[Ear]:
    async with ear(stack, "checkpoint.events") as heard:
        yield heard


@pytest.fixture(scope="module")
async def db(stack: Stack) -> AsyncIterator[asyncpg.Connection]:
    conn = await asyncpg.connect(stack.postgres_dsn("operator"))
    yield conn
    await conn.close()


@pytest.fixture(scope="module")
def objects(stack: Stack) -> S3ObjectStore:
    key = stack.s3_credentials("root")
    return S3ObjectStore(stack.s3_endpoint, key.access_key, key.secret_key, bucket=stack.s3_bucket)


@pytest.fixture
def play(voice: Voices, heard: Ear, outages: Outages) -> Play:
    outages.go()
    return Play(voice, heard)


async def put_bundle(objects: S3ObjectStore, job_id: str, step: int, *, attempt: int = 1) -> BundleRef:
    """As a runner does: parts first, the manifest last."""
    parts = []
    for path, text in PARTS.items():
        data = text + f"{job_id} {attempt} {step}".encode()
        part = FileEntry(path=path, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        await objects.put_bytes(layout.checkpoint(job_id, attempt, step, layout.part(part.sha256)), data)
        parts.append(part)
    manifest = BundleManifest(
        job_id=job_id,
        attempt=attempt,
        step=step,
        world_size=1,
        method=Method.LORA,
        base_sha=a_sha("tiny"),
        dataset_version=a_sha("dataset"),
        config_hash=a_sha("config"),
        parts=tuple(parts),
    )
    digest = await put_manifest(objects, layout.checkpoint(job_id, attempt, step), manifest)
    return BundleRef(attempt=attempt, step=step, manifest_sha256=digest)


async def flip_a_bit(objects: S3ObjectStore, job_id: str, bundle: BundleRef) -> None:
    parts = await objects.list_objects(layout.checkpoint(job_id, bundle.attempt, bundle.step, "parts/"))
    data = await objects.get_bytes(parts[0].key)
    await objects.delete([parts[0].key])
    await objects.put_bytes(parts[0].key, bytes([data[0] ^ 1]) + data[1:])


async def steps_kept(objects: S3ObjectStore, job_id: str) -> set[int]:
    """Of the bundles whose manifest and parts are all there."""
    keys = [head.key for head in await objects.list_objects(f"checkpoints/{job_id}/")]
    steps = [int(key.split("/")[3]) for key in keys]
    return {step for step in steps if steps.count(step) == len(PARTS) + 1}


async def verdict_on(verdicts: Ear, job_id: str, *bundles: BundleRef) -> list[Message]:
    """One for each, in their order; empty while one is missing."""
    verdict_by_bundle = {
        delivery.message.bundle: delivery.message
        for delivery in verdicts.heard[job_id]
        if not isinstance(delivery.message, CheckpointExpired | CheckpointOverdue)
    }
    return (
        [verdict_by_bundle[bundle] for bundle in bundles] if verdict_by_bundle.keys() >= set(bundles) else []
    )


def scheduled(
    job_id: str, *, attempt: int = 1, resume: BundleRef | None = None, every: float = 600.0
) -> JobScheduled:
    return JobScheduled(
        job_id=job_id,
        tenant=TENANT,
        attempt=attempt,
        spec=a_job_spec(recipe=Recipe(checkpoint=CheckpointSpec(every_seconds=every))),
        base_sha=a_sha("tiny"),
        dataset=a_dataset_ref(),
        config_hash=a_sha("config"),
        resume=resume,
        pool="nowhere",
        capacity_type="spot",
        nodes=1,
        devices_per_node=1,
        grace_seconds=30,
        start_deadline=utc_now() + timedelta(minutes=5),
    )


def requeued(job_id: str) -> JobRequeued:
    return JobRequeued(
        job_id=job_id,
        tenant=TENANT,
        attempt=1,
        failure_class=FailureClass.PREEMPTED,
        resume=None,
        not_before=utc_now(),
        message="the node was taken back",
    )


async def attempt_of(db: asyncpg.Connection, job_id: str) -> Any:
    return await db.fetchrow(
        "SELECT attempt, is_open, started_at, last_written_at, last_step FROM checkpoint_watcher.attempt"
        " WHERE job_id = $1",
        job_id,
    )


async def is_consumed(db: asyncpg.Connection, event_id: str) -> bool:
    """Applied, or kept until what it refers to is known."""
    return await db.fetchval(
        "SELECT EXISTS (SELECT FROM checkpoint_watcher.inbox WHERE event_id = $1)"
        " OR EXISTS (SELECT FROM checkpoint_watcher.waiting WHERE event_id = $1)",
        event_id,
    )


class TestEitherOrder:
    """Facts of two topics may come in any order; what the watcher knows in the end is the same."""

    async def tell(self, play: Play, db: asyncpg.Connection, *turns: tuple[str, Iterable[Message]]) -> None:
        for writer, facts in turns:
            renamed = [fact.model_copy(update={"job_id": play.job}) for fact in facts]
            event_id = await play.voice.say(writer, *renamed)
            await until(lambda event_id=event_id: is_consumed(db, event_id), f"{renamed[-1].type} consumed")

    @pytest.mark.parametrize("order", [1, -1], ids=["scheduled first", "facts first"])
    @pytest.mark.parametrize(
        "end", [incoming.stopped(), incoming.completed(a_bundle(10))], ids=lambda fact: fact.type
    )
    async def test_an_attempt_that_wrote_and_ended(self, play: Play, db, objects, order: int, end: Message):
        bundle = await put_bundle(objects, play.job, 10)
        facts = [incoming.started(), incoming.written(bundle), end]
        turns = [("scheduler", [scheduled(play.job)]), ("trainer_agent", facts)]
        await self.tell(play, db, *turns[::order])

        async def ended() -> Any:
            row = await attempt_of(db, play.job)
            return row if row is not None and not row["is_open"] else None

        row = await until(ended, "the attempt closed")
        assert (row["attempt"], row["last_step"]) == (1, 10)
        assert row["started_at"] is not None
        assert row["last_written_at"] is not None

    @pytest.mark.parametrize("order", [1, -1], ids=["scheduled first", "started first"])
    async def test_an_attempt_that_writes_nothing_is_overdue(self, play: Play, db, verdicts: Ear, order: int):
        turns = [("scheduler", [scheduled(play.job, every=0.1)]), ("trainer_agent", [incoming.started()])]
        await self.tell(play, db, *turns[::order])
        overdue = await verdicts.until_any(play.job, "CheckpointOverdue")
        assert (overdue.attempt, overdue.last_step) == (1, 0)
        await self.tell(play, db, ("scheduler", [requeued(play.job)]))

    @pytest.mark.parametrize("order", [1, -1], ids=["started first", "requeued first"])
    async def test_an_attempt_that_ended_is_not_opened_by_its_start(self, play: Play, db, order: int):
        turns = [("trainer_agent", [incoming.started()]), ("scheduler", [requeued(play.job)])]
        await self.tell(play, db, ("scheduler", [scheduled(play.job)]), *turns[::order])
        assert (await attempt_of(db, play.job))["is_open"] is False

    async def test_a_late_fact_of_an_old_attempt_leaves_the_present_one_alone(self, play: Play, db):
        await self.tell(
            play,
            db,
            ("scheduler", [scheduled(play.job), requeued(play.job), scheduled(play.job, attempt=2)]),
            ("trainer_agent", [incoming.started(), incoming.stopped()]),
        )
        row = await attempt_of(db, play.job)
        assert (row["attempt"], row["is_open"], row["started_at"]) == (2, True, None)


class TestAnOutageOfTheStore:
    async def test_is_waited_out_and_condemns_no_bundle(self, play: Play, outages, verdicts: Ear, objects):
        bundle = await put_bundle(objects, play.job, 10)
        outages.go("get_bytes")
        await play.voice.say("scheduler", scheduled(play.job))
        await play.say("trainer_agent", incoming.started(), incoming.written(bundle))

        async def outlasted() -> bool:
            return outages.refused > 5 or bool(await verdict_on(verdicts, play.job, bundle))

        await until(outlasted, "more tries than a task has")
        outages.go()
        await until(lambda: verdict_on(verdicts, play.job, bundle), "the verdict")
        (verdict,) = await verdict_on(verdicts, play.job, bundle)
        assert isinstance(verdict, CheckpointVerified)

    async def test_leaves_nothing_half_deleted(self, play: Play, outages, verdicts: Ear, objects):
        bundles = [await put_bundle(objects, play.job, step) for step in (10, 20, 30)]
        outages.go("list_objects")
        await play.voice.say("scheduler", scheduled(play.job))
        await play.say("trainer_agent", incoming.started(), *map(incoming.written, bundles))

        async def outlasted() -> bool:
            return outages.refused > 3

        await until(outlasted, "more tries than a task has")
        outages.go()
        expired = await verdicts.until_any(play.job, "CheckpointExpired")
        assert expired.bundle == bundles[0]
        assert await steps_kept(objects, play.job) == {20, 30}
        left = await objects.list_objects(layout.checkpoint(play.job, 1, 10, ""))
        assert left == []


@pytest.fixture(scope="module")
async def scheduler(stack: Stack) -> AsyncIterator[Stack]:
    await stack.start("scheduler")
    await stack.wait_healthy("scheduler")
    yield stack
    await stack.stop("scheduler")


class TestACorruptBundle:
    async def test_is_passed_over_at_the_next_resume_and_two_verified_ones_stay(
        self, scheduler, play: Play, verdicts: Ear, objects
    ):
        await play.running()
        good, spoilt = [await put_bundle(objects, play.job, step) for step in (10, 20)]
        await flip_a_bit(objects, play.job, spoilt)
        await play.say("trainer_agent", incoming.written(good), incoming.written(spoilt))
        await until(lambda: verdict_on(verdicts, play.job, good, spoilt), "a verdict on both")
        assert [type(verdict).__name__ for verdict in await verdict_on(verdicts, play.job, good, spoilt)] == [
            "CheckpointVerified",
            "CheckpointCorrupt",
        ]

        again = await self.lost_and_scheduled_again(play)
        assert (again.attempt, again.resume) == (2, good)

        await play.say("trainer_agent", incoming.started(attempt=2))
        newer = [await put_bundle(objects, play.job, step, attempt=2) for step in (30, 40, 50)]
        for bundle in newer:
            await play.say("trainer_agent", incoming.written(bundle, attempt=2))
            await until(
                lambda bundle=bundle: verdict_on(verdicts, play.job, bundle), f"a verdict on {bundle}"
            )
        expired = await verdicts.until_any(play.job, "CheckpointExpired")
        assert expired.bundle == newer[0]
        # The one that the attempt began from stays as well, and the corrupt one is nobody's to delete.
        assert await steps_kept(objects, play.job) == {10, 20, 40, 50}

    async def lost_and_scheduled_again(self, play: Play) -> JobScheduled:
        await play.say("provisioner", incoming.lost(), incoming.released())
        await play.say("trainer_agent", incoming.stopped(last_step=25))

        async def second() -> JobScheduled | None:
            fact = play.heard.last(play.job)
            return fact if isinstance(fact, JobScheduled) and fact.attempt == 2 else None

        return await until(second, "the second attempt")
