"""How long the last fact of an attempt and the verdicts on its bundles are waited for."""

from datetime import timedelta

import pytest

from schemas.base import FailureClass
from schemas.job import JobFailed, JobStopping
from schemas.lifecycle import JobState
from schemas.specification import Resources
from services.scheduler.decide.decision import RunOverdue, StopOverdue, Timer
from tests.builders import NOON, a_bundle, a_job, a_job_spec
from tests.unit.scheduler import news
from tests.unit.scheduler.story import Story

VALIDATING, QUEUED, PROVISIONING, RUNNING, STOPPING, PAUSED, EVALUATING, SUCCEEDED, FAILED, CANCELLED = (
    JobState
)


class TestTenMinutes:
    def test_after_the_release_whatever_is_missing_is_not_waited_for(self):
        story = Story(a_job(STOPPING)).later(minutes=1).tell(news.released())
        timer = story.timers[-1]
        assert timer.at == NOON + timedelta(minutes=11)
        story.now = timer.at
        assert story.tell(timer.payload).job.state is QUEUED

    def test_after_the_stop_if_that_came_later(self):
        story = Story(a_job(RUNNING)).tell(news.released()).later(minutes=8).tell(news.preempted())
        assert story.timers[-1].at == NOON + timedelta(minutes=18)

    def test_a_stronger_reason_does_not_put_the_end_off(self):
        story = Story(a_job(STOPPING)).tell(news.released()).later(minutes=9).tell(news.cancel())
        story.later(minutes=1).tell(StopOverdue(job_id="ftjob-1", attempt=1))
        assert story.job.state is CANCELLED

    def test_a_missing_verdict_is_enough_to_wait_for(self):
        story = Story(a_job(STOPPING)).tell(news.written(), news.stopped(), news.released())
        story.later(minutes=9).tell(StopOverdue(job_id="ftjob-1", attempt=1))
        assert story.job.state is STOPPING
        assert story.later(minutes=1).tell(StopOverdue(job_id="ftjob-1", attempt=1)).job.state is QUEUED

    def test_nodes_that_are_not_released_are_waited_for_without_end(self):
        story = Story(a_job(STOPPING)).tell(news.stopped()).later(days=1)
        assert story.tell(StopOverdue(job_id="ftjob-1", attempt=1)).job.state is STOPPING

    @pytest.mark.parametrize("state", [PROVISIONING, RUNNING])
    def test_training_whose_nodes_are_gone_and_whose_end_nobody_reports_is_stopped(self, state):
        story = Story(a_job(state)).tell(news.released(), news.started())
        for expected in (STOPPING, QUEUED):
            timer = story.timers[-1]
            story.now = timer.at
            assert story.tell(timer.payload).job.state is expected
        assert story.last(JobStopping).failure_class is FailureClass.INFRA
        assert story.now == NOON + timedelta(minutes=20)

    def test_the_verdict_on_a_complete_training_is_waited_for_without_nodes(self):
        story = Story(a_job(RUNNING)).tell(news.completed(), news.released()).later(days=1)
        assert story.tell(StopOverdue(job_id="ftjob-1", attempt=1)).job.state is RUNNING
        assert story.tell(news.verified()).job.state is EVALUATING

    def test_a_second_release_does_not_put_the_end_off(self):
        story = Story(a_job(STOPPING)).tell(news.released()).later(minutes=9).tell(news.released())
        assert story.job.facts.released_at == NOON


class TestLongestRunTime:
    RESOURCES = Resources(max_run_seconds=3_600, grace_seconds=30)

    def begun(self) -> Story:
        story = Story(a_job(QUEUED, spec=a_job_spec(resources=self.RESOURCES)))
        return story.schedule()

    def overdue(self, story: Story) -> Timer:
        return next(timer for timer in story.timers if isinstance(timer.payload, RunOverdue))

    def test_an_attempt_has_given_its_nodes_back_once_it_had_time_to_save_a_bundle(self):
        story = self.begun()
        assert story.job.present.ends_by == story.now + timedelta(seconds=3_630)
        assert self.overdue(story).at == story.now + timedelta(hours=1)

    def test_without_one_it_may_take_as_long_as_it_takes(self):
        story = Story(a_job(QUEUED)).schedule()
        assert story.job.present.ends_by is None
        assert not any(isinstance(timer.payload, RunOverdue) for timer in story.timers)

    @pytest.mark.parametrize("has_started", [True, False])
    def test_an_attempt_that_runs_longer_is_stopped_and_its_job_fails_with_the_reason(self, has_started):
        story = self.begun()
        attempt = story.job.attempt
        if has_started:
            story.tell(news.started(attempt=attempt))
        timer = self.overdue(story)
        story.now = timer.at
        story.tell(timer.payload)
        stopping = story.last(JobStopping)
        assert (stopping.failure_class, stopping.deadline) == (
            FailureClass.USER,
            timer.at + timedelta(seconds=30),
        )
        last = a_bundle(step=90, attempt=attempt)
        story.tell(news.stopped(last, attempt=attempt), news.verified(last), news.released(attempt=attempt))
        failed = story.last(JobFailed)
        assert failed.failure_class is FailureClass.USER
        assert failed.message == "the attempt ran longer than resources.max_run_seconds, 3600 s"

    def test_the_time_of_an_earlier_attempt_stops_nobody(self):
        story = self.begun()
        attempt = story.job.attempt
        story.tell(news.started(attempt=attempt))
        assert story.tell(RunOverdue(job_id="ftjob-1", attempt=attempt - 1)).job.state is RUNNING

    def test_what_ends_while_it_is_stopped_has_ended_well(self):
        story = self.begun()
        attempt = story.job.attempt
        story.tell(news.started(attempt=attempt), RunOverdue(job_id="ftjob-1", attempt=attempt))
        assert story.job.state is STOPPING
        final = a_bundle(step=600, attempt=attempt)
        story.tell(news.completed(final, attempt=attempt), news.verified(final))
        assert story.job.state is EVALUATING
