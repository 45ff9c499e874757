"""How long the last fact of an attempt and the verdicts on its bundles are waited for."""

from datetime import timedelta

import pytest

from schemas.base import FailureClass
from schemas.job import JobStopping
from services.scheduler.decide.decision import StopOverdue
from services.scheduler.model import JobState
from tests.builders import NOON, a_job
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
