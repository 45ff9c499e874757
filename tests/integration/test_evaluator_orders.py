"""The evaluator hears of a job's artifact from two services; either may be heard first."""

import hashlib
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from deploy.local.stack import Stack
from schemas import layout
from schemas.base import FileRef, Message, TrialOf
from schemas.job import Artifact, JobCancelled, JobEvaluating
from schemas.model import PromotionRefused
from schemas.sweep import TrialChosen
from shared.storage.s3 import S3ObjectStore
from tests.builders import a_sha
from tests.integration.evaluator_world import a_job, its_version
from tests.integration.voices import Voices, voices
from tests.waiting import until

pytestmark = pytest.mark.stack

ROWS = b'{"messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]}\n'


@pytest.fixture(scope="module")
async def voice(stack: Stack) -> AsyncIterator[Voices]:
    await stack.start("evaluator", env={"EVALUATOR_SCORING_ATTEMPTS": "20"})
    await stack.wait_healthy("evaluator")
    async with voices(stack) as voice:
        yield voice
    await stack.stop("evaluator")


@pytest.fixture(scope="module")
async def db(stack: Stack) -> AsyncIterator[asyncpg.Connection]:
    conn = await asyncpg.connect(stack.postgres_dsn("operator"))
    yield conn
    await conn.close()


@pytest.fixture
def job() -> JobEvaluating:
    return a_job(base_sha=a_sha("tiny"), template_sha256=a_sha("template"))


def refused(job: JobEvaluating, code: str = "artifact") -> PromotionRefused:
    return PromotionRefused(
        job_id=job.job_id, tenant=job.tenant, model_id=None, code=code, message="a part is corrupt"
    )


def cancelled(job: JobEvaluating) -> JobCancelled:
    artifact = Artifact.model_validate(job.model_dump())
    return JobCancelled(job_id=job.job_id, tenant=job.tenant, reason="user", artifact=artifact)


async def tell(voice: Voices, db: asyncpg.Connection, *turns: tuple[str, Message]) -> None:
    """Each is consumed before the next is said: applied, or kept until what it refers to is known."""
    for writer, fact in turns:
        event_id = await voice.say(writer, fact)

        async def consumed(event_id: str = event_id) -> bool:
            return await db.fetchval(
                "SELECT EXISTS (SELECT FROM evaluator.inbox WHERE event_id = $1)"
                " OR EXISTS (SELECT FROM evaluator.waiting WHERE event_id = $1)",
                event_id,
            )

        await until(consumed, f"{fact.type} consumed")


async def state_of(db: asyncpg.Connection, job_id: str) -> Any:
    row = await db.fetchrow("SELECT state, reason FROM evaluator.evaluation WHERE job_id = $1", job_id)
    return None if row is None else tuple(row)


@pytest.mark.parametrize("order", [1, -1], ids=["evaluating first", "refused first"])
async def test_an_artifact_that_the_registry_refused_is_not_evaluated(
    voice, db, job: JobEvaluating, order: int
):
    await tell(voice, db, *[("scheduler", job), ("registry", refused(job))][::order])

    async def abandoned() -> bool:
        return await state_of(db, job.job_id) == ("abandoned", "a part is corrupt")

    await until(abandoned, "the evaluation abandoned")


async def test_a_trial_is_evaluated_when_its_sweep_chooses_it(voice, db, job: JobEvaluating):
    trial = job.model_copy(update={"trial": TrialOf(sweep_id="sweep-1", number=3)})
    await tell(voice, db, ("scheduler", trial), ("registry", its_version(trial, digest=a_sha("trial"))))
    assert await state_of(db, job.job_id) is None
    await tell(voice, db, ("tracker", TrialChosen(**dict(trial))))
    assert await state_of(db, job.job_id) is not None


async def test_the_gate_of_a_cancelled_job_is_stopped(stack, voice, db, job: JobEvaluating):
    """Its base model is not in the store, so it would be tried again and again."""
    key = stack.s3_credentials("root")
    objects = S3ObjectStore(stack.s3_endpoint, key.access_key, key.secret_key, bucket=stack.s3_bucket)
    sha256 = await objects.put_bytes(layout.blob(hashlib.sha256(ROWS).hexdigest()), ROWS)
    holdout = FileRef(file_id="file-1", sha256=sha256, size_bytes=len(ROWS))
    job = job.model_copy(update={"suites": {}, "holdout": holdout})
    await tell(voice, db, ("scheduler", job), ("registry", its_version(job, a_sha("weights"))))
    assert (await state_of(db, job.job_id))[0] == "running"
    await tell(voice, db, ("scheduler", cancelled(job)))
    assert await state_of(db, job.job_id) == ("inconclusive", "the job was cancelled")
    assert not await db.fetchval(
        "SELECT count(*) FROM evaluator.task JOIN evaluator.evaluation ON key = eval_id WHERE job_id = $1",
        job.job_id,
    )


@pytest.mark.parametrize("order", [1, -1], ids=["cancelled first", "refused first"])
async def test_that_of_a_cancelled_job_leaves_nothing_waiting(voice, db, job: JobEvaluating, order: int):
    await tell(voice, db, *[("scheduler", cancelled(job)), ("registry", refused(job))][::order])

    async def nothing_waits() -> bool:
        return await db.fetchval(
            "SELECT NOT EXISTS (SELECT FROM evaluator.waiting WHERE aggregate_id = $1)", job.job_id
        )

    await until(nothing_waits, "nothing to wait")
    assert await state_of(db, job.job_id) is None


async def test_a_refusal_for_another_reason_says_nothing_about_the_artifact(voice, db, job: JobEvaluating):
    await tell(voice, db, ("registry", refused(job, code="stale_base")), ("scheduler", job))
    assert await state_of(db, job.job_id) == ("waiting", "")
