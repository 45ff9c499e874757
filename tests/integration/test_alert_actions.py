"""From steps to a stop: the tracker and the scheduler as processes, the others played by their Kafka users."""

from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal

import pytest

from deploy.local.stack import Stack
from schemas.alert import AlertsSpec
from schemas.base import CapacityType
from schemas.job import StopReason
from schemas.node import AllocatedNode, NodesProvisioned
from schemas.training import StepsRecorded
from shared.clock import utc_now
from tests.builders import a_bundle
from tests.integration.test_alerts import recorded
from tests.integration.test_scheduler import SUBMITTED, Play
from tests.integration.voices import ear, voices
from tests.unit.scheduler import incoming

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
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


async def test_a_job_ends_before_its_budget_is_passed(both: Stack):
    """A cent a second, and 35 seconds are kept for the stop. The checkpoint is kept."""
    async with voices(both) as voice, ear(both, "job.events") as heard:
        play = Play(voice, heard)
        play.max_cost = Decimal("0.60")
        await play.running()
        began_at = utc_now() - timedelta(seconds=20)
        node = AllocatedNode(node_id="n", index=0, price_per_hour=Decimal(36), allocated_at=began_at)
        held = {**incoming.JOB, "attempt": 1, "pool": play.pool, "capacity_type": CapacityType.SPOT}
        await play.say("provisioner", NodesProvisioned(**held, nodes=(node,)))
        await play.say("trainer_agent", incoming.written(a_bundle(10)))
        await play.say("checkpoint_watcher", incoming.verified(a_bundle(10)))
        stopping = await play.until(*SUBMITTED, "JobRunning", "JobStopping")
        assert stopping.reason is StopReason.BUDGET
        spent = Decimal(stopping.message.partition(" ")[0])
        assert Decimal("0.25") <= spent < Decimal("0.60")
        await play.say("trainer_agent", incoming.stopped())
        await play.say("provisioner", incoming.released())
        cancelled = await play.until(*SUBMITTED, "JobRunning", "JobStopping", "JobCancelled")
        assert (cancelled.reason, cancelled.artifact.bundle) == ("budget", a_bundle(10))
