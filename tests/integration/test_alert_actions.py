"""From steps to a stop: the tracker and the scheduler as processes, the others played by their Kafka users."""

from collections.abc import AsyncIterator

import pytest

from deploy.local.stack import Stack
from schemas.alert import AlertsSpec
from schemas.job import StopReason
from schemas.training import StepsRecorded
from tests.integration.test_alerts import recorded
from tests.integration.test_scheduler import SUBMITTED, Play
from tests.integration.voices import ear, voices
from tests.unit.scheduler import incoming

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]


@pytest.fixture
async def both(stack: Stack) -> AsyncIterator[Stack]:
    for name in ("scheduler", "tracker"):
        await stack.start(name)
    for name in ("scheduler", "tracker"):
        await stack.wait_healthy(name)
    yield stack
    for name in ("scheduler", "tracker"):
        await stack.stop(name)


async def test_a_loss_spike_pauses_the_job_that_asks_for_it(both: Stack):
    async with voices(both) as voice, ear(both, "job.events") as heard:
        play = Play(voice, heard)
        play.alerts = AlertsSpec(loss_spike="pause")
        await play.running()
        await play.say("provisioner", incoming.nodes_provisioned())
        steps = recorded(play.job, range(1, 110)).steps
        await play.say("runner", StepsRecorded(**incoming.JOB, attempt=1, steps=steps))
        stopping = await play.until(*SUBMITTED, "JobRunning", "JobStopping")
        assert stopping.reason is StopReason.PAUSE
        assert stopping.message.startswith("alert loss_spike: loss 5, usually 1.7")
        await play.say("trainer_agent", incoming.stopped())
        await play.say("provisioner", incoming.released())
        paused = await play.until(*SUBMITTED, "JobRunning", "JobStopping", "JobPaused")
        assert paused.reason == "alert"
