"""The checkpoint watcher on real Kafka, Postgres and S3: what a cut-off attempt uploaded does not stay for ever."""

from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from deploy.local.stack import Stack
from schemas import layout
from schemas.base import BundleRef, FailureClass, StartFrom
from schemas.job import JobCancelled, JobRequeued, JobScheduled, JobStage, JobStageCompleted, JobSubmitted
from schemas.training import CheckpointWritten
from shared.clock import utc_now
from tests.integration.attempts import Attempts
from tests.waiting import until

pytestmark = pytest.mark.stack

SOON = {"CHECKPOINT_WATCHER_SWEEP_AFTER": "PT0.1S", "CHECKPOINT_WATCHER_KEEP_ENDED": "PT0.1S"}


@pytest.fixture(scope="module")
async def attempts(stack: Stack) -> AsyncIterator[Attempts]:
    await stack.start("checkpoint_watcher", env=SOON)
    await stack.wait_healthy("checkpoint_watcher")
    async with Attempts.on(stack) as attempts:
        yield attempts
    await stack.stop("checkpoint_watcher")


async def put(attempts: Attempts, job_id: str, attempt: int, step: int, *paths: str) -> set[str]:
    keys = {layout.checkpoint(job_id, attempt, step, path) for path in paths}
    for key in keys:
        await attempts.objects.put_bytes(key, key.encode())
    return keys


async def keys_below(attempts: Attempts, job_id: str, attempt: int) -> set[str]:
    return {head.key for head in await attempts.objects.list_objects(layout.checkpoints(job_id, attempt))}


def requeued(scheduled: JobScheduled) -> JobRequeued:
    return JobRequeued(
        job_id=scheduled.job_id,
        tenant=scheduled.tenant,
        attempt=scheduled.attempt,
        failure_class=FailureClass.PREEMPTED,
        resume=None,
        not_before=utc_now() + timedelta(minutes=1),
        message="the node was taken back",
    )


async def test_parts_that_no_manifest_will_ever_name_go_once_their_attempt_ended(attempts: Attempts):
    first = await attempts.schedule()
    job_id = first.job_id
    complete = await put(attempts, job_id, 1, 10, layout.MANIFEST, layout.part("5e1"))
    cut_off = await put(attempts, job_id, 1, 20, layout.part("5e2"), layout.part("5e3"))
    under_way = await put(attempts, job_id, 2, 30, layout.part("5e4"))
    await attempts.write("scheduler", requeued(first))
    await attempts.schedule(job_id, attempt=2)

    async def is_swept() -> bool:
        return not await keys_below(attempts, job_id, 1) & cut_off

    await until(is_swept)
    assert await keys_below(attempts, job_id, 1) == complete
    assert await keys_below(attempts, job_id, 2) == under_way


def cancelled(scheduled: JobScheduled) -> JobCancelled:
    return JobCancelled(
        job_id=scheduled.job_id,
        tenant=scheduled.tenant,
        attempt=scheduled.attempt,
        reason="user",
        artifact=None,
    )


async def test_bundles_of_an_ended_job_go_also_those_that_nobody_named(attempts: Attempts):
    first = await attempts.schedule()
    job_id = first.job_id
    await attempts.write("scheduler", requeued(first))
    second = await attempts.schedule(job_id, attempt=2)
    named = BundleRef(attempt=2, step=10, manifest_sha256="5e" * 32)
    written = CheckpointWritten(
        job_id=job_id, tenant=first.tenant, attempt=2, bundle=named, kind="periodic", metrics={}
    )
    await attempts.write("trainer_agent", written)
    await put(attempts, job_id, 1, 10, layout.MANIFEST, layout.part("5e1"))
    await put(attempts, job_id, 2, 10, layout.MANIFEST, layout.part("5e2"))
    await put(attempts, job_id, 2, 20, layout.MANIFEST, layout.part("5e3"))
    await attempts.write("scheduler", cancelled(second))

    async def is_gone() -> bool:
        return not any([await keys_below(attempts, job_id, attempt) for attempt in (1, 2)])

    async def is_told() -> bool:
        states = "SELECT count(*) FROM checkpoint WHERE job_id = $1 AND state = 'expired'"
        conn = await asyncpg.connect(attempts.stack.postgres_dsn("checkpoint_watcher"))
        try:
            return bool(await conn.fetchval(states, job_id))
        finally:
            await conn.close()

    await until(is_gone)
    await until(is_told)


async def test_what_a_stage_starts_from_is_in_use_until_the_job_is_over(attempts: Attempts):
    first = await attempts.schedule()
    bundle = BundleRef(attempt=1, step=10, manifest_sha256="5e" * 32)
    start = StartFrom(name="stage 1", job_id=first.job_id, bundle=bundle)
    stage = JobStage(number=2, num_stages=2, first_attempt=2, steps_before=10, start=start)
    completed = JobStageCompleted(job_id=first.job_id, tenant=first.tenant, attempt=1, stage=stage)
    await attempts.write("scheduler", completed)
    uses = "SELECT count(*) FROM bundle_use WHERE trained_by = $1 AND attempt = 1 AND step = 10"
    db = await asyncpg.connect(attempts.stack.postgres_dsn("checkpoint_watcher"))
    try:
        await until(lambda: db.fetchval(uses, first.job_id))
        await attempts.write("scheduler", cancelled(first))

        async def is_free() -> bool:
            return not await db.fetchval(uses, first.job_id)

        await until(is_free)
    finally:
        await db.close()


async def test_bundles_that_another_job_starts_from_stay_until_it_is_over(attempts: Attempts):
    trained_by = await attempts.schedule()
    bundle = BundleRef(attempt=1, step=10, manifest_sha256="5e" * 32)
    keys = await put(attempts, trained_by.job_id, 1, 10, layout.MANIFEST, layout.part("5e1"))
    user = attempts.a_schedule()
    start = StartFrom(name="ftckpt-x", job_id=trained_by.job_id, bundle=bundle)
    spec = user.spec.model_copy(update={"start_from": start})
    submitted = JobSubmitted(
        job_id=user.job_id, tenant=user.tenant, dataset_id="ds-1", spec=spec, submitted_at=utc_now()
    )
    await attempts.write("scheduler", submitted)
    db = await asyncpg.connect(attempts.stack.postgres_dsn("checkpoint_watcher"))
    try:
        await until(lambda: db.fetchval("SELECT true FROM bundle_use WHERE job_id = $1", user.job_id))
        await attempts.write("scheduler", cancelled(trained_by))
        looks = "SELECT count(*) FROM timer WHERE type = 'JobDue' AND payload ->> 'job_id' = $1"
        await until(lambda: db.fetchval(looks, trained_by.job_id))
    finally:
        await db.close()
    assert await keys_below(attempts, trained_by.job_id, 1) == keys
    await attempts.write("scheduler", cancelled(user))

    async def is_gone() -> bool:
        return not await keys_below(attempts, trained_by.job_id, 1)

    await until(is_gone)
