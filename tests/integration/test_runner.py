"""Runners and the control side together, with a scripted child, on real Kafka, Postgres and S3."""

import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from deploy.local.stack import Stack
from schemas import layout
from schemas.base import FailureClass
from schemas.job import JobScheduled, StopReason
from schemas.node import NodesReleased
from schemas.training import (
    BundleKind,
    CheckpointWritten,
    RunnerHeartbeat,
    RunnerStarted,
    RunnerStopped,
    StartTraining,
    StepReached,
    StepsRecorded,
    StopTraining,
    TrainingCompleted,
    TrainingFailed,
    TrainingResumed,
    TrainingStarted,
    TrainingStopped,
)
from shared.clock import utc_now
from tests.chaos.scale import note
from tests.integration.attempts import Attempts
from tests.integration.nodes import attempts, nodes
from tests.waiting import until

__all__ = ["attempts", "nodes"]

pytestmark = pytest.mark.stack

SLOW = {"steps": 10_000, "seconds": 0.05}


@asynccontextmanager
async def kafka_away(stack: Stack) -> AsyncIterator[None]:
    await stack.stop("kafka")
    try:
        yield
    finally:
        await stack.start("kafka")
        await stack.wait_healthy("kafka")


async def num_heartbeats(attempts: Attempts, scheduled: JobScheduled, *, by_attempt: int) -> int:
    """Number of heartbeats that the log has by now: a claim of an attempt that nobody scheduled is written behind them
    and read."""
    await attempts.write("runner", a_stop_of(scheduled, attempt=by_attempt))
    await attempts.until(scheduled.job_id, RunnerStopped, attempt=by_attempt)
    return len(attempts.heard(scheduled.job_id, RunnerHeartbeat))


async def recorded_steps(attempts: Attempts, scheduled: JobScheduled, last: int) -> list[int]:
    """Steps of all metrics, once those of the last step are there."""

    def steps() -> list[int]:
        return [s.step for batch in attempts.heard(scheduled.job_id, StepsRecorded) for s in batch.steps]

    await until(lambda: last in steps())
    return steps()


class TestHappyPath:
    async def test_trains_stores_and_tells(self, attempts, nodes):
        scheduled = await attempts.schedule()
        await nodes.start(scheduled, script={"steps": 35, "seconds": 0.02, "every": 10})
        done = await attempts.until(scheduled.job_id, TrainingCompleted)
        assert (done.last_step, done.bundle.step, done.bundle.attempt) == (35, 35, 1)
        assert (await attempts.bundle_state(scheduled.job_id, done.bundle))["step"] == 35
        story = attempts.story(scheduled.job_id, "training.events")
        assert (story[0], story[-1]) == ("TrainingStarted", "TrainingCompleted")
        assert story[1] == "TrainingPrepared"
        assert set(story[2:-1]) == {"CheckpointWritten"}
        final = attempts.heard(scheduled.job_id, CheckpointWritten, kind=BundleKind.FINAL)
        assert [fact.bundle for fact in final] == [done.bundle]
        assert (await nodes.until_ended(scheduled)).exit_code == 0
        first = await attempts.until(scheduled.job_id, StepReached)
        assert (first.step, first.num_steps, first.packing, first.certificate) == (1, 35, "proved", None)
        service_log = attempts.stack.state.log("trainer_agent").read_text()
        assert "X-Amz-Signature" not in await attempts.log(scheduled) + service_log
        assert await recorded_steps(attempts, scheduled, 35) == list(range(1, 36))

    async def test_a_last_bundle_of_a_step_that_was_just_saved_is_stored_once(self, attempts, nodes):
        scheduled = await attempts.schedule()
        await nodes.start(scheduled, script={"steps": 3, "every": 1})
        done = await attempts.until(scheduled.job_id, TrainingCompleted)
        assert done.bundle.step == 3
        written = [fact.bundle for fact in attempts.heard(scheduled.job_id, CheckpointWritten)]
        assert written.count(done.bundle) == 1

    async def test_resumes_from_a_verified_bundle_of_its_own_or_another_job_with_its_certificate(
        self, attempts, nodes
    ):
        first = await attempts.schedule()
        await nodes.start(first, script=SLOW)
        await attempts.until(first.job_id, StepReached)
        await attempts.stop(first)
        stopped = await attempts.until(first.job_id, TrainingStopped)
        steps = stopped.last_step + 4
        second = await attempts.schedule(first.job_id, attempt=2, resume=stopped.bundle)
        theirs = stopped.bundle.model_copy(update={"job_id": first.job_id})
        other = await attempts.schedule(resume=theirs)
        for scheduled in (second, other):
            await nodes.start(scheduled, script={"steps": steps})
            done = await attempts.until(scheduled.job_id, TrainingCompleted)
            assert (done.attempt, done.last_step) == (scheduled.attempt, steps)
            resumed = attempts.heard(scheduled.job_id, TrainingResumed)[0]
            assert (resumed.certificate.exact, resumed.certificate.step) == (True, stopped.bundle.step)
            assert attempts.heard(scheduled.job_id, StepReached)[-1].step == stopped.last_step + 1


class TestStop:
    async def test_saves_at_the_step_boundary_and_tells_and_keeps_the_log(self, attempts, nodes):
        scheduled = await attempts.schedule()
        await nodes.start(scheduled, script=SLOW)

        async def is_followed() -> bool:
            return "step 3\n" in await attempts.log(scheduled)

        await until(is_followed)
        await attempts.stop(scheduled, reason=StopReason.PAUSE)
        stopped = await attempts.until(scheduled.job_id, TrainingStopped)
        assert (stopped.reason, stopped.bundle.step) == ("pause", stopped.last_step)
        assert (await attempts.bundle_state(scheduled.job_id, stopped.bundle))["step"] == stopped.last_step
        assert attempts.story(scheduled.job_id, "training.events") == [
            "TrainingStarted",
            "TrainingPrepared",
            "CheckpointWritten",
            "TrainingStopped",
        ]
        assert (await nodes.until_ended(scheduled)).exit_code == 143
        log = await attempts.log(scheduled)
        assert f"step {stopped.last_step}\n" in log
        assert "runner ends" in log

    async def test_that_the_child_ignores_ends_at_its_deadline_which_may_move_earlier(self, attempts, nodes):
        scheduled = await attempts.schedule()
        await nodes.start(scheduled, script=SLOW | {"ignore_stop": True})
        await attempts.until(scheduled.job_id, StepReached)
        await attempts.stop(scheduled, seconds=300)
        await attempts.until(scheduled.job_id, RunnerHeartbeat, state="stopping")
        began = utc_now()
        await attempts.stop(scheduled, seconds=3)
        stopped = await attempts.until(scheduled.job_id, TrainingStopped)
        assert (stopped.reason, stopped.bundle) == ("cancel", None)
        assert (await nodes.until_ended(scheduled)).exit_code == 143
        assert utc_now() - began < timedelta(seconds=6)
        assert nodes.child_pids(scheduled) == []

    async def test_before_the_gang_is_complete_nothing_starts(self, attempts, nodes):
        scheduled = await attempts.schedule()
        await attempts.stop(scheduled)
        await attempts.until(scheduled.job_id, StopTraining)
        await nodes.start(scheduled)
        assert (await nodes.until_ended(scheduled)).exit_code == 143
        await attempts.until(scheduled.job_id, TrainingStopped)
        assert attempts.heard(scheduled.job_id, StartTraining) == []

    async def test_answers_a_runner_of_an_ended_attempt(self, attempts, nodes):
        old = await attempts.schedule()
        await attempts.schedule(old.job_id, attempt=2)
        await attempts.until(old.job_id, TrainingStopped, attempt=1)
        await nodes.start(old)
        assert (await nodes.until_ended(old)).exit_code == 143
        assert attempts.heard(old.job_id, StartTraining) == []


class TestNotice:
    async def test_without_a_directive_saves_all_the_same(self, attempts, nodes):
        scheduled = await attempts.schedule()
        await nodes.start(scheduled, script=SLOW)
        await attempts.until(scheduled.job_id, StepReached)
        name = layout.attempt_name(scheduled.job_id, 1)
        await nodes.backend.notify(name, 0, utc_now() + timedelta(seconds=20))
        stopped = await attempts.until(scheduled.job_id, TrainingStopped)
        assert (stopped.reason, stopped.bundle.step) == ("unasked", stopped.last_step)
        assert (await nodes.until_ended(scheduled)).exit_code == 143

    async def test_to_a_runner_whose_gang_is_not_complete_ends_it(self, attempts, nodes):
        scheduled = await attempts.schedule(nodes=2)
        await nodes.start(scheduled.model_copy(update={"nodes": 1}), RUNNER_NOTICE_WAIT="PT0.2S")
        await attempts.until(scheduled.job_id, RunnerHeartbeat, times=3, state="waiting")
        assert attempts.heard(scheduled.job_id, StartTraining) == []
        await nodes.backend.notify(
            layout.attempt_name(scheduled.job_id, 1), 0, utc_now() + timedelta(seconds=20)
        )
        stopped = await attempts.until(scheduled.job_id, TrainingStopped)
        assert (stopped.reason, stopped.last_step, stopped.bundle) == ("unasked", 0, None)
        assert (await nodes.until_ended(scheduled)).exit_code == 143


class TestFailure:
    async def failed(self, attempts, scheduled: JobScheduled) -> TrainingFailed:
        await attempts.until(scheduled.job_id, TrainingStopped)
        story = attempts.story(scheduled.job_id, "training.events")
        assert story[-2:] == ["TrainingFailed", "TrainingStopped"]
        return attempts.heard(scheduled.job_id, TrainingFailed)[0]

    @pytest.mark.parametrize(
        ("script", "failure", "message"),
        [
            ({"fail_at": 3}, FailureClass.NUMERIC, "loss is NaN"),
            ({"crash_at": 3}, FailureClass.INTERNAL, "the training child exited with code 3"),
            ({"hang_at": 3}, FailureClass.INFRA, "the training child hung: no progress in its step section"),
        ],
        ids=["told", "crash", "hang"],
    )
    async def test_is_reported_by_class(self, attempts, nodes, script, failure, message):
        scheduled = await attempts.schedule()
        await nodes.start(scheduled, script=script, RUNNER_STEP_LIMIT="PT2S")
        failed = await self.failed(attempts, scheduled)
        assert failed.failure_class is failure
        assert failed.message.removeprefix(f"node {failed.node_id}: ").startswith(message)
        assert (await nodes.until_ended(scheduled)).exit_code == 143
        assert nodes.child_pids(scheduled) == []

    async def test_a_step_longer_than_the_limit_is_none_as_long_as_it_continues(self, attempts, nodes):
        scheduled = await attempts.schedule()
        script = {"steps": 2, "micro_batches": 4, "seconds": 1.0}
        await nodes.start(scheduled, script=script, RUNNER_STEP_LIMIT="PT2S")
        done = await attempts.until(scheduled.job_id, TrainingCompleted)
        assert done.last_step == 2

    async def test_a_killed_child_is_infrastructure(self, attempts, nodes):
        scheduled = await attempts.schedule()
        await nodes.start(scheduled, script=SLOW | {"every": 2})
        await attempts.until(scheduled.job_id, CheckpointWritten)
        os.kill(nodes.child_pids(scheduled)[0], signal.SIGKILL)
        failed = await self.failed(attempts, scheduled)
        assert (failed.failure_class, failed.message) == (
            FailureClass.INFRA,
            f"node {failed.node_id}: the training child was ended by signal 9",
        )

    async def test_a_corrupt_input_is_not_trained_on(self, attempts, nodes):
        dataset = attempts.a_schedule().dataset
        scheduled = await attempts.schedule(dataset=dataset.model_copy(update={"manifest_sha256": "b" * 64}))
        await nodes.start(scheduled)
        assert "CorruptObject" in (await self.failed(attempts, scheduled)).message


class TestDeathOfARunner:
    async def test_it_never_starts_a_second_child(self, attempts, nodes):
        scheduled = await attempts.schedule()
        await nodes.start(scheduled, script=SLOW)
        await attempts.until(scheduled.job_id, StepReached)
        os.kill(nodes.runner_pid(scheduled), signal.SIGKILL)
        assert (await nodes.until_ended(scheduled)).exit_code == 137
        started = len(attempts.heard(scheduled.job_id, RunnerStarted))
        await nodes.backend.end(layout.attempt_name(scheduled.job_id, 1), 0)
        await nodes.restart(scheduled)
        failed = await attempts.until(scheduled.job_id, TrainingFailed)
        message = "the runner was started again while its child trained"
        assert failed.message == f"node {failed.node_id}: {message}"
        assert (await nodes.until_ended(scheduled)).exit_code == 143
        assert nodes.child_pids(scheduled) == []
        assert len(attempts.heard(scheduled.job_id, RunnerStarted)) == started

    async def test_before_training_it_continues_where_it_was(self, attempts, nodes):
        """Its RunnerStarted is the same, and the directive that came meanwhile is not missed."""
        scheduled = attempts.a_schedule()
        await nodes.start(scheduled, script={"steps": 3})
        await attempts.until(scheduled.job_id, RunnerStarted)
        await nodes.backend.end(layout.attempt_name(scheduled.job_id, 1), 0)
        await nodes.until_ended(scheduled)
        await attempts.write("scheduler", scheduled)
        await attempts.until(scheduled.job_id, StartTraining)
        await nodes.restart(scheduled)
        await attempts.until(scheduled.job_id, TrainingCompleted)
        assert len(set(attempts.report_ids(scheduled.job_id, RunnerStarted))) == 1

    async def test_in_silence_fails_the_attempt_and_its_nodes_release_ends_it(self, attempts, nodes):
        scheduled = await attempts.schedule()
        await nodes.start(scheduled, script=SLOW)
        await attempts.until(scheduled.job_id, StepReached)
        await nodes.backend.end(layout.attempt_name(scheduled.job_id, 1), 0)
        failed = await attempts.until(scheduled.job_id, TrainingFailed)
        assert (failed.failure_class, failed.message) == (
            FailureClass.INFRA,
            "no report from runner 0 for 30 s",
        )
        await attempts.write(
            "provisioner", NodesReleased(job_id=scheduled.job_id, tenant="demo", attempt=1, nodes=())
        )
        stopped = await attempts.until(scheduled.job_id, TrainingStopped)
        assert stopped.reason == "failure"

    async def test_of_an_outage_longer_than_any_kills_itself_and_its_child(self, attempts, nodes):
        scheduled = await attempts.schedule()
        limits = {"RUNNER_FENCE_AFTER": "PT2S", "RUNNER_OUTAGE_LIMIT": "PT4S"}
        await nodes.start(scheduled, script=SLOW, **limits)
        await attempts.until(scheduled.job_id, StepReached)
        async with kafka_away(attempts.stack):
            assert (await nodes.until_ended(scheduled)).exit_code == 70
            assert nodes.child_pids(scheduled) == []

    async def test_without_kafka_and_without_its_grant_kills_itself_and_its_child(self, attempts, nodes):
        scheduled = await attempts.schedule()
        await nodes.start(scheduled, script=SLOW)
        await attempts.until(scheduled.job_id, StepReached)
        async with kafka_away(attempts.stack):
            nodes.grant_file(scheduled).unlink()
            assert (await nodes.until_ended(scheduled)).exit_code == 70
            assert nodes.child_pids(scheduled) == []
        note("grant withdrawn without Kafka", runners_ended=1)

    async def test_without_its_folder_kills_itself_and_its_child(self, attempts, nodes):
        """Whoever removed the folder can end nobody in it any more."""
        scheduled = await attempts.schedule()
        await nodes.start(scheduled, script=SLOW)
        await attempts.until(scheduled.job_id, StepReached)
        folder = nodes.folder / layout.attempt_name(scheduled.job_id, 1)

        def is_removed() -> bool:
            shutil.rmtree(folder, ignore_errors=True)  # the runner may write in it meanwhile
            return not folder.exists()

        await until(is_removed)
        await until(lambda: not nodes.pids(scheduled))
        note("folder removed", runners_ended=1)

    async def test_stopped_by_a_signal_and_woken_up_without_its_grant_it_fences_itself(self, attempts, nodes):
        scheduled = await attempts.schedule()
        await nodes.start(scheduled, script=SLOW)
        await attempts.until(scheduled.job_id, RunnerHeartbeat, state="training")
        runner = nodes.runner_pid(scheduled)
        os.kill(runner, signal.SIGSTOP)
        before = await num_heartbeats(attempts, scheduled, by_attempt=7)
        nodes.grant_file(scheduled).unlink()
        os.kill(runner, signal.SIGCONT)
        assert (await nodes.until_ended(scheduled)).exit_code == 70
        assert await num_heartbeats(attempts, scheduled, by_attempt=8) <= before + 2


class TestForgedClaims:
    """By who has a node's login to Kafka: every node's is the same."""

    async def test_of_an_attempt_that_nobody_scheduled_void_no_real_one(self, attempts, nodes):
        scheduled = await attempts.schedule()
        await nodes.start(scheduled, script=SLOW)
        await attempts.until(scheduled.job_id, StepReached)
        await attempts.write("runner", a_stop_of(scheduled, attempt=2_000_000_000))
        await attempts.stop(scheduled)
        stopped = await attempts.until(scheduled.job_id, TrainingStopped)
        assert (stopped.attempt, stopped.reason) == (1, "cancel")
        assert stopped.bundle is not None
        ours = attempts.heard(scheduled.job_id, TrainingStopped) + attempts.heard(
            scheduled.job_id, TrainingCompleted
        )
        assert [fact.attempt for fact in ours] == [1]

    async def test_before_the_attempt_is_scheduled_open_none_and_count_for_none(self, attempts, nodes):
        scheduled = attempts.a_schedule()
        await attempts.write("runner", a_stop_of(scheduled, attempt=7), a_stop_of(scheduled, node_index=3))
        await attempts.write("scheduler", scheduled)
        await nodes.start(scheduled, script={"steps": 3})
        await attempts.until(scheduled.job_id, TrainingCompleted)
        assert attempts.story(scheduled.job_id, "training.events").count("TrainingCompleted") == 1

    async def test_by_a_node_or_tenant_that_was_not_given_are_dropped(self, attempts, nodes):
        scheduled = await attempts.schedule()
        await nodes.start(scheduled, script=SLOW)
        await attempts.until(scheduled.job_id, StepReached)
        await attempts.write(
            "runner", a_stop_of(scheduled, node_index=1), a_stop_of(scheduled, tenant="other")
        )
        await attempts.stop(scheduled)
        stopped = await attempts.until(scheduled.job_id, TrainingStopped)
        assert stopped.reason == "cancel"


def a_stop_of(scheduled: JobScheduled, **changes: object) -> RunnerStopped:
    fields = {"job_id": scheduled.job_id, "tenant": scheduled.tenant, "attempt": scheduled.attempt}
    failed = {"outcome": "failed", "failure_class": FailureClass.USER, "message": "forged", "last_step": 9}
    return RunnerStopped(**(fields | {"node_index": 0} | failed | changes))


class TestGang:
    async def test_starts_when_all_have_reported_and_stores_one_bundle_of_all(self, attempts, nodes):
        scheduled = await attempts.schedule(nodes=2)
        await nodes.start(scheduled, script={"steps": 8, "seconds": 0.02})
        done = await attempts.until(scheduled.job_id, TrainingCompleted)
        started = await attempts.until(scheduled.job_id, TrainingStarted)
        assert [member.node_index for member in started.members] == [0, 1]
        assert len({member.port for member in started.members}) == 2
        key = layout.checkpoint(scheduled.job_id, 1, done.bundle.step)
        manifest = json.loads(await attempts.objects.get_bytes(key))
        assert [part["path"] for part in manifest["parts"]] == ["state.json", "state-1.json"]
        for part in manifest["parts"]:
            stored = layout.checkpoint(scheduled.job_id, 1, done.bundle.step, layout.part(part["sha256"]))
            assert await attempts.objects.head(stored) is not None
        for node in range(2):
            assert (await nodes.until_ended(scheduled, node)).exit_code == 0
        # Of one node, though both have them.
        assert await recorded_steps(attempts, scheduled, 8) == list(range(1, 9))

    async def test_a_stop_reaches_all(self, attempts, nodes):
        scheduled = await attempts.schedule(nodes=2)
        await nodes.start(scheduled, script=SLOW | {"hold_at": 5})
        await attempts.until(scheduled.job_id, StepReached)
        await attempts.stop(scheduled)
        stopped = await attempts.until(scheduled.job_id, TrainingStopped)
        assert (stopped.last_step, stopped.bundle.step) == (5, 5)
        for node in range(2):
            assert (await nodes.until_ended(scheduled, node)).exit_code == 143


async def test_a_restart_of_the_control_side_loses_no_attempt(attempts, nodes):
    scheduled = await attempts.schedule()
    await nodes.start(scheduled, script={"steps": 150, "seconds": 0.05})
    await attempts.until(scheduled.job_id, StepReached)
    await attempts.stack.kill("trainer_agent")  # its supervisor starts it again
    await attempts.until(scheduled.job_id, TrainingCompleted)
    story = attempts.story(scheduled.job_id, "training.events")
    assert story.count("TrainingStarted") == story.count("TrainingCompleted") == 1
    assert "TrainingFailed" not in story
