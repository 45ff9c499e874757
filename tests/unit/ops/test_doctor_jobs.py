"""I5, I6, I8 and I13 on broken histories of a job."""

from dataclasses import replace
from datetime import timedelta

import pytest

from ops.doctor.history import Job
from schemas.base import BundleRef, CommandRefused, Message
from schemas.checkpoint import CheckpointVerified
from schemas.job import JobRequeued, JobScheduled, JobStage, JobStageCompleted
from schemas.training import RunnerHeartbeat, TrainingResumed
from tests.builders import NOON, TENANT, a_bundle, a_sha
from tests.unit.ops.histories import (
    EMERGENCY,
    READ_AT,
    Publisher,
    a_history,
    a_snapshot,
    alarms,
    evaluating,
    first_attempt,
    history_of,
    queued,
    requeued,
    running,
    scheduled,
    second_attempt,
    stopping,
    submitted,
    succeeded,
    with_kernel,
)
from tests.unit.scheduler import incoming

RELEASED = incoming.released(attempt=2)


def publishing(writer, *messages):
    def publish(publisher: Publisher) -> None:
        for message in messages:
            publisher.publish(writer, message)

    return publish


def jobs_publish(*messages):
    return publishing("scheduler", *messages)


class TestFenced:
    def test_a_fact_of_an_earlier_attempt(self):
        late = publishing("trainer_agent", incoming.written(EMERGENCY))
        (finding,) = alarms(history_of(first_attempt, second_attempt, late))["I5"]
        assert finding.found == "attempt 1"
        assert finding.expected == "attempt 2 or later, which was reported before"

    def test_a_fact_behind_the_last_fact(self):
        (finding,) = alarms(history_of(first_attempt, publishing("trainer_agent", incoming.failed())))["I5"]
        assert finding.expected == "none after its last fact"

    def test_two_last_facts(self):
        (finding,) = alarms(history_of(first_attempt, publishing("trainer_agent", incoming.stopped())))["I5"]
        assert finding.expected == "none after its last fact"

    def test_a_bundle_of_another_attempt(self):
        other = incoming.written(a_bundle(30, attempt=7))
        (finding,) = alarms(history_of(jobs_publish(submitted()), publishing("trainer_agent", other)))["I5"]
        assert finding.found == "a bundle of attempt 7"

    def test_the_attempt_number_jumps(self):
        (finding,) = alarms(history_of(jobs_publish(submitted(), queued(), scheduled(2))))["I5"]
        assert (finding.found, finding.expected) == ("attempt 2", "attempt 1")

    def test_the_attempt_number_rises_without_being_scheduled(self):
        stream = jobs_publish(submitted(), queued(), scheduled(1), running(2))
        (finding,) = alarms(history_of(stream))["I5"]
        assert (finding.found, finding.expected) == ("attempt 2", "attempt 1")

    def test_nodes_are_released_twice(self):
        (finding,) = alarms(history_of(first_attempt, publishing("provisioner", incoming.released())))["I5"]
        assert finding.expected == "none after its NodesReleased"


class TestLegal:
    @pytest.mark.parametrize(
        ("stream", "found"),
        [
            ((submitted(), queued(), running(1)), "JobRunning after JobQueued"),
            ((submitted(), queued(), scheduled(1), running(), running()), "JobRunning after JobRunning"),
            ((queued(),), "JobQueued after nothing"),
        ],
        ids=["skips", "repeats", "begins in the middle"],
    )
    def test_a_move_that_the_table_does_not_have(self, stream, found):
        assert alarms(history_of(jobs_publish(*stream)))["I6"][0].found == found

    def test_a_terminal_state_is_left(self):
        again = jobs_publish(evaluating())
        (finding,) = alarms(history_of(first_attempt, second_attempt, again))["I6"]
        assert (finding.found, finding.expected) == ("JobEvaluating after JobSucceeded", "nothing")

    def test_a_stop_may_be_said_again(self):
        stream = jobs_publish(submitted(), queued(), scheduled(1), stopping(), stopping())
        assert "I6" not in alarms(history_of(stream))

    def test_the_table_says_something_else_than_the_topic(self):
        job = Job("ftjob-1", TENANT, "running", 2, a_sha("config"))
        (finding,) = alarms(a_history(snapshot=a_snapshot(jobs={"ftjob-1": job})))["I6"]
        assert finding.expected == "state succeeded"

    def test_the_table_may_be_ahead_of_the_topic(self):
        job = Job("ftjob-1", TENANT, "running", 2, a_sha("config"))
        history = a_history(snapshot=a_snapshot(jobs={"ftjob-1": job}))
        given = {**history.kernels["scheduler"].sequences, ("job.events", "ftjob-1"): 99}
        assert "I6" not in alarms(with_kernel(history, "scheduler", sequences=given))

    def test_a_refused_command_is_no_move(self):
        def refuse(publisher: Publisher) -> None:
            refusal = CommandRefused(
                subject_id="ftjob-1", command="CancelJob", command_id="c-1", code="too_late", message="no"
            )
            publisher.publish("scheduler", refusal)

        assert "I6" not in alarms(history_of(first_attempt, second_attempt, refuse))


class Instead:
    """Tells another requeue than the one it is given."""

    def __init__(self, publisher: Publisher, requeue: JobRequeued) -> None:
        self.publisher, self.requeue = publisher, requeue

    def publish(self, writer: str, message: Message, *, cause: str = "") -> str:
        message = self.requeue if isinstance(message, JobRequeued) else message
        return self.publisher.publish(writer, message, cause=cause)


def with_requeue(resume: BundleRef | None):
    """The first attempt, but requeued like this."""
    return lambda publisher: first_attempt(Instead(publisher, requeued(resume)))


class TestResumedFromNewest:
    def test_the_newest_verified_bundle_is_passed_over(self):
        (finding,) = alarms(history_of(with_requeue(None)))["I8"]
        assert finding.expected == "bundle 1/20, the newest verified bundle"

    def test_a_bundle_that_nobody_verified(self):
        unknown = a_bundle(90)
        (finding,) = alarms(history_of(with_requeue(unknown)))["I8"]
        assert finding.found == "resume from bundle 1/90, which nobody verified"

    def test_the_bundle_of_a_job_that_is_continued_was_verified_there(self):
        own = a_bundle(30)
        verified = CheckpointVerified(job_id="ftjob-0", tenant=TENANT, bundle=own, size_bytes=1)
        for writer, is_broken in (("ftjob-0", False), ("ftjob-9", True)):
            begun = jobs_publish(scheduled(1, own.model_copy(update={"job_id": writer})))
            history = history_of(begun, publishing("checkpoint_watcher", verified))
            assert ("I8" in alarms(history)) is is_broken

    def test_the_attempt_begins_from_less_than_was_known(self):
        findings = alarms(history_of(first_attempt, jobs_publish(scheduled(2))))["I8"]
        assert [finding.expected for finding in findings] == ["bundle 1/20 or newer"]

    def test_the_next_stage_has_bundles_of_its_own(self):
        stage = JobStage(number=2, num_stages=2, first_attempt=2, steps_before=20)
        completed = JobStageCompleted(job_id="ftjob-1", tenant=TENANT, attempt=1, stage=stage)
        begun = jobs_publish(completed, scheduled(2), stopping(2), requeued(None, 2))
        assert "I8" not in alarms(history_of(first_attempt, begun, publishing("provisioner", RELEASED)))
        begun = jobs_publish(scheduled(2), stopping(2), requeued(None, 2))
        assert "I8" in alarms(history_of(first_attempt, begun, publishing("provisioner", RELEASED)))

    def test_a_verdict_that_came_after_the_scheduler_gave_up_waiting(self):
        history = history_of(with_requeue(None))
        entries = tuple(
            replace(entry, time=entry.time + timedelta(minutes=11)) if entry.type == "JobRequeued" else entry
            for entry in history.entries
        )
        assert "I8" not in alarms(replace(history, entries=entries))

    def test_a_verdict_that_came_later_than_the_requeue_does_not_count_against_it(self):
        history = history_of(with_requeue(None))
        entries = tuple(
            replace(entry, time=entry.time + timedelta(minutes=1))
            if entry.type == "CheckpointVerified"
            else entry
            for entry in history.entries
        )
        assert "I8" not in alarms(replace(history, entries=entries))

    @pytest.mark.parametrize(("step", "alarm"), [(20, False), (10, True), (21, True)])
    def test_training_continues_at_another_step_than_that_of_the_bundle(self, step, alarm):
        certificate = {"exact": True, "step": step, "reason": "equal"}
        resumed = TrainingResumed(job_id="ftjob-1", tenant=TENANT, attempt=2, certificate=certificate)
        stream = history_of(
            first_attempt, jobs_publish(scheduled(2, EMERGENCY)), publishing("trainer_agent", resumed)
        )
        expectations = [finding.expected for finding in alarms(stream).get("I8", ())]
        assert expectations == (["from bundle 1/20"] if alarm else [])

    def test_training_continues_though_its_attempt_was_given_no_bundle(self):
        certificate = {"exact": True, "step": 5, "reason": "equal"}
        resumed = TrainingResumed(job_id="ftjob-1", tenant=TENANT, attempt=1, certificate=certificate)
        stream = history_of(
            jobs_publish(submitted(), queued(), scheduled(1)), publishing("trainer_agent", resumed)
        )
        assert [finding.expected for finding in alarms(stream)["I8"]] == ["from nothing"]

    def test_complete_with_a_bundle_of_another_step(self):
        short = incoming.completed(EMERGENCY).model_copy(update={"last_step": 600})
        (finding,) = alarms(history_of(jobs_publish(submitted()), publishing("trainer_agent", short)))["I8"]
        assert finding.found == "completed at step 600 with bundle 1/20"


class TestLive:
    def snapshot(self, state: str):
        return a_snapshot(jobs={"ftjob-1": Job("ftjob-1", TENANT, state, 1, a_sha("config"))})

    @pytest.mark.parametrize("state", ["validating", "provisioning", "running", "stopping", "evaluating"])
    def test_a_job_under_way_that_says_nothing(self, state):
        (finding,) = alarms(a_history(snapshot=self.snapshot(state)))["I13"]
        assert finding.found.startswith(f"{state}, nothing heard of it since 2027-03-01 12:00:")

    @pytest.mark.parametrize("state", ["queued", "paused", "succeeded", "failed", "cancelled"])
    def test_a_job_that_waits_for_others(self, state):
        assert "I13" not in alarms(a_history(snapshot=self.snapshot(state)))

    @pytest.mark.parametrize(
        ("state", "known"), [("validating", "dataset ds-1 is ready"), ("evaluating", "serving has answered")]
    )
    def test_a_job_that_waits_for_what_is_known(self, state, known):
        snapshot = replace(self.snapshot(state), unapplied={"ftjob-1": known})
        (finding,) = alarms(a_history(snapshot=snapshot, read_at=NOON + timedelta(minutes=1)))["I13"]
        assert finding.found == f"{state}, although {known}"

    def test_a_heartbeat_is_a_sign(self):
        def beat(publisher: Publisher) -> None:
            publisher.now = READ_AT - timedelta(minutes=1)
            publisher.publish("runner", news_of_runner())

        history = replace(history_of(first_attempt, beat), snapshot=self.snapshot("running"))
        assert "I13" not in alarms(history)

    def test_a_task_that_was_set_aside(self):
        aside = (("CopyArtifact", "ftjob-1", "ValidationError: artifact"),)
        (finding,) = alarms(with_kernel(a_history(), "registry", tasks_set_aside=aside))["I13"]
        assert finding.where == "registry.task CopyArtifact ftjob-1"
        assert finding.found == "set aside: ValidationError: artifact"

    def test_a_timer_that_should_have_fired(self):
        due = (("StartOverdue", READ_AT - timedelta(minutes=5)), ("StopOverdue", READ_AT))
        (finding,) = alarms(with_kernel(a_history(), "scheduler", timers_due=due))["I13"]
        assert finding.found.startswith("1 timers overdue, the first StartOverdue since")


def news_of_runner():
    return RunnerHeartbeat(job_id="ftjob-1", tenant=TENANT, attempt=1, node_index=0, step=3, state="training")


def test_the_story_of_the_fixture_has_two_attempts():
    history = a_history()
    attempts = [entry.message.attempt for entry in history.of_type(JobScheduled)]
    assert attempts == [1, 2]
    assert [entry.type for entry in history.of_topic("job.events")][-1] == succeeded().type
