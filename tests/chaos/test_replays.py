"""All topics read again from the first record, by services that live and know their jobs: nothing changes."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from deploy.local.stack import Stack
from schemas.job import CancelJob
from schemas.training import StepsRecorded
from shared.messaging.login import Login
from tests.builders import NOON, TENANT, a_bundle
from tests.chaos.replaying import Replay
from tests.chaos.scale import at_night, note
from tests.integration.test_scheduler import SUBMITTED, Play, deployed
from tests.integration.voices import ear, voices
from tests.unit.scheduler import incoming

pytestmark = [
    pytest.mark.stack,
    at_night("after the soak every service reads every topic again"),
]

SERVICES = ("scheduler", "tracker", "gateway")


@pytest.fixture(scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """Its own: what other tests have put into the topics would be read again as well."""
    stack = Stack(tmp_path_factory.mktemp("replay"))
    await stack.up(SERVICES)
    yield stack
    await stack.down()


@pytest.fixture(scope="module")
async def replay(stack: Stack) -> AsyncIterator[Replay]:
    """Three services with jobs that ended in different ways; the others are played by their Kafka users."""
    async with voices(stack) as voice, ear(stack, "job.events") as heard:
        plays = [Play(voice, heard) for _ in range(5)]
        await _succeed(plays[0])
        await _resume(plays[1])
        await _cancel(plays[2])
        await _refused(plays[3])
        await plays[4].running()
    login = Login(stack.kafka_bootstrap, "admin", stack.kafka_password("admin"))
    async with asyncpg.create_pool(stack.postgres_dsn("operator"), min_size=0, max_size=2) as db:
        yield Replay(stack, db, login, SERVICES, stack.start)


async def _succeed(play: Play) -> None:
    await play.running()
    steps = StepsRecorded(job_id=play.job, tenant=TENANT, attempt=1, steps=())
    await play.voice.say("runner", steps)
    await play.say("trainer_agent", incoming.written(), incoming.completed())
    await play.say("checkpoint_watcher", incoming.verified())
    await play.say("provisioner", incoming.released())
    await play.voice.say("serving_controller", deployed(play))
    await play.say("registry", incoming.registered(), incoming.promoted())
    approved = incoming.approved().model_copy(update={"slot": f"ft:{play.job}"})
    await play.say("registry", approved)
    await play.say("evaluator", incoming.eval_passed())
    await play.until(*SUBMITTED, "JobRunning", "JobEvaluating", "JobSucceeded")


async def _resume(play: Play) -> None:
    await play.running()
    await play.say("trainer_agent", incoming.written(a_bundle(20)))
    await play.say("checkpoint_watcher", incoming.verified(a_bundle(20)))
    await play.say("provisioner", incoming.preempted(deadline=NOON))
    await play.say("trainer_agent", incoming.stopped(a_bundle(20)))
    await play.heard.until_any(play.job, "JobStopping")
    await play.say("provisioner", incoming.released())
    await play.heard.until_any(play.job, "JobRequeued")


async def _cancel(play: Play) -> None:
    await play.running()
    await play.say("gateway", incoming.cancel())
    await play.heard.until_any(play.job, "JobStopping")
    await play.say("trainer_agent", incoming.stopped())
    await play.say("provisioner", incoming.released())
    await play.heard.until_any(play.job, "JobCancelled")


async def _refused(play: Play) -> None:
    await play.voice.say("gateway", CancelJob(job_id=play.job, tenant=TENANT))
    await play.until("CommandRefused")


async def test_a_replay_of_every_topic_changes_nothing(replay: Replay):
    assert await replay.changes() == {}
    assert min(replay.read.values()) > 0
    note("replay", **replay.read)
