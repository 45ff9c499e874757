"""How long the last fact of an attempt and the verdicts on its bundles are waited for."""

from datetime import timedelta

import pytest

from schemas.base import FailureClass
from schemas.job import JobFailed, JobStopping
from schemas.lifecycle import JobState
from schemas.specification import Resources
from services.scheduler.decide.decision import RunOverdue, StartOverdue, StopOverdue, Timer
from services.scheduler.decide.overdue import OpenJob, deadline
from tests.builders import NOON, a_bundle, a_job, a_job_spec
from tests.unit.scheduler import incoming
from tests.unit.scheduler.job_history import History

VALIDATING, QUEUED, PROVISIONING, RUNNING, STOPPING, PAUSED, EVALUATING, SUCCEEDED, FAILED, CANCELLED = (
    JobState
)


class TestTenMinutes:
    def test_after_the_release_whatever_is_missing_is_not_waited_for(self):
        history = History(a_job(STOPPING)).later(minutes=1).apply(incoming.released())
        timer = history.timers[-1]
        assert timer.at == NOON + timedelta(minutes=11)
        history.now = timer.at
        assert history.apply(timer.payload).job.state is QUEUED

    def test_after_the_stop_if_that_came_later(self):
        history = (
            History(a_job(RUNNING)).apply(incoming.released()).later(minutes=8).apply(incoming.preempted())
        )
        assert history.timers[-1].at == NOON + timedelta(minutes=18)

    def test_a_stronger_reason_does_not_put_the_end_off(self):
        history = (
            History(a_job(STOPPING)).apply(incoming.released()).later(minutes=9).apply(incoming.cancel())
        )
        history.later(minutes=1).apply(StopOverdue(job_id="ftjob-1", attempt=1))
        assert history.job.state is CANCELLED

    def test_a_missing_verdict_is_enough_to_wait_for(self):
        history = History(a_job(STOPPING)).apply(incoming.written(), incoming.stopped(), incoming.released())
        history.later(minutes=9).apply(StopOverdue(job_id="ftjob-1", attempt=1))
        assert history.job.state is STOPPING
        assert history.later(minutes=1).apply(StopOverdue(job_id="ftjob-1", attempt=1)).job.state is QUEUED

    def test_nodes_that_are_not_released_are_waited_for_without_end(self):
        history = History(a_job(STOPPING)).apply(incoming.stopped()).later(days=1)
        assert history.apply(StopOverdue(job_id="ftjob-1", attempt=1)).job.state is STOPPING

    @pytest.mark.parametrize("state", [PROVISIONING, RUNNING])
    def test_training_whose_nodes_are_gone_and_whose_end_nobody_reports_is_stopped(self, state):
        history = History(a_job(state)).apply(incoming.released(), incoming.started())
        for expected in (STOPPING, QUEUED):
            timer = history.timers[-1]
            history.now = timer.at
            assert history.apply(timer.payload).job.state is expected
        assert history.last(JobStopping).failure_class is FailureClass.INFRA
        assert history.now == NOON + timedelta(minutes=20)

    def test_the_verdict_on_a_complete_training_is_waited_for_without_nodes(self):
        history = History(a_job(RUNNING)).apply(incoming.completed(), incoming.released()).later(days=1)
        assert history.apply(StopOverdue(job_id="ftjob-1", attempt=1)).job.state is RUNNING
        assert history.apply(incoming.verified()).job.state is EVALUATING

    def test_a_second_release_does_not_put_the_end_off(self):
        history = (
            History(a_job(STOPPING)).apply(incoming.released()).later(minutes=9).apply(incoming.released())
        )
        assert history.job.facts.released_at == NOON


class TestLongestRunTime:
    RESOURCES = Resources(max_run_seconds=3_600, grace_seconds=30)

    def begun(self) -> History:
        history = History(a_job(QUEUED, spec=a_job_spec(resources=self.RESOURCES)))
        return history.schedule()

    def overdue(self, history: History) -> Timer:
        return next(timer for timer in history.timers if isinstance(timer.payload, RunOverdue))

    def test_an_attempt_has_given_its_nodes_back_once_it_had_time_to_save_a_bundle(self):
        history = self.begun()
        assert history.job.present.ends_by == history.now + timedelta(seconds=3_630)
        assert self.overdue(history).at == history.now + timedelta(hours=1)

    def test_without_one_it_may_take_as_long_as_it_takes(self):
        history = History(a_job(QUEUED)).schedule()
        assert history.job.present.ends_by is None
        assert not any(isinstance(timer.payload, RunOverdue) for timer in history.timers)

    @pytest.mark.parametrize("has_started", [True, False])
    def test_an_attempt_that_runs_longer_is_stopped_and_its_job_fails_with_the_reason(self, has_started):
        history = self.begun()
        attempt = history.job.attempt
        if has_started:
            history.apply(incoming.started(attempt=attempt))
        timer = self.overdue(history)
        history.now = timer.at
        history.apply(timer.payload)
        stopping = history.last(JobStopping)
        assert (stopping.failure_class, stopping.deadline) == (
            FailureClass.USER,
            timer.at + timedelta(seconds=30),
        )
        last = a_bundle(step=90, attempt=attempt)
        history.apply(
            incoming.stopped(last, attempt=attempt),
            incoming.verified(last),
            incoming.released(attempt=attempt),
        )
        failed = history.last(JobFailed)
        assert failed.failure_class is FailureClass.USER
        assert failed.message == "the attempt ran longer than resources.max_run_seconds, 3600 s"

    def test_the_time_of_an_earlier_attempt_stops_nobody(self):
        history = self.begun()
        attempt = history.job.attempt
        history.apply(incoming.started(attempt=attempt))
        assert history.apply(RunOverdue(job_id="ftjob-1", attempt=attempt - 1)).job.state is RUNNING

    def test_what_ends_while_it_is_stopped_has_ended_well(self):
        history = self.begun()
        attempt = history.job.attempt
        history.apply(incoming.started(attempt=attempt)).later(hours=1)
        history.apply(RunOverdue(job_id="ftjob-1", attempt=attempt))
        assert history.job.state is STOPPING
        final = a_bundle(step=600, attempt=attempt)
        history.apply(incoming.completed(final, attempt=attempt), incoming.verified(final))
        assert history.job.state is EVALUATING


class TestQueueOfTheBackend:
    """What waits in the queue of a cluster backend is not late, and its times begin when it runs."""

    RESOURCES = Resources(max_run_seconds=3_600, grace_seconds=30)

    def waiting(self) -> History:
        history = History(a_job(QUEUED, spec=a_job_spec(resources=self.RESOURCES))).schedule()
        return history.apply(incoming.nodes_queued(attempt=history.job.attempt))

    def fire(self, history: History, kind: type, *, number: int) -> History:
        timer = [timer for timer in history.timers if isinstance(timer.payload, kind)][number]
        history.now = timer.at
        return history.apply(timer.payload)

    def test_is_waited_in_for_as_long_as_it_takes(self):
        history = self.waiting()
        for kind in (StartOverdue, RunOverdue):
            self.fire(history, kind, number=0)
        assert history.job.state is PROVISIONING
        assert deadline(OpenJob(PROVISIONING, history.job.present, None), history.view.policy) is None

    def test_is_left_with_the_whole_time_to_start_and_to_run(self):
        history = self.waiting().later(hours=5)
        begun, start_deadline = history.now, history.now + timedelta(minutes=5)
        history.apply(incoming.nodes_provisioned(attempt=history.job.attempt, start_deadline=start_deadline))
        assert history.job.present.start_deadline == start_deadline
        assert history.job.present.ends_by == begun + timedelta(seconds=3_630)
        history.now = begun
        first = next(timer for timer in history.timers if isinstance(timer.payload, StartOverdue))
        assert history.apply(first.payload).job.state is PROVISIONING
        assert self.fire(history, StartOverdue, number=1).job.state is STOPPING

    def test_has_no_end_where_the_job_states_none(self):
        history = History(a_job(QUEUED)).schedule()
        history.apply(incoming.nodes_queued(attempt=history.job.attempt)).later(hours=5)
        start_deadline = history.now + timedelta(minutes=5)
        history.apply(incoming.nodes_provisioned(attempt=history.job.attempt, start_deadline=start_deadline))
        assert (history.job.present.start_deadline, history.job.present.ends_by) == (start_deadline, None)

    def test_is_none_where_the_backend_starts_at_once(self):
        history = History(a_job(QUEUED)).schedule()
        before, timers = history.job.present, len(history.timers)
        history.apply(incoming.nodes_provisioned(attempt=history.job.attempt))
        assert (history.job.present, len(history.timers)) == (before, timers)

    def test_without_room_costs_no_budget(self):
        history = self.waiting()
        history.apply(incoming.provisioning_failed("no_capacity", attempt=history.job.attempt))
        assert (history.job.state, history.job.requeues) == (QUEUED, {})
