"""From the last bundle to the end of the job: verdict, promotion, deployment, each in any order."""

from datetime import timedelta

import pytest

from schemas.job import JobFailed, JobSucceeded
from schemas.lifecycle import JobState
from schemas.model import Stage
from services.scheduler.decide.decision import DeploymentOverdue
from tests.builders import NOON, a_job, a_job_spec
from tests.unit.scheduler import news
from tests.unit.scheduler.story import Story

VALIDATING, QUEUED, PROVISIONING, RUNNING, STOPPING, PAUSED, EVALUATING, SUCCEEDED, FAILED, CANCELLED = (
    JobState
)


class TestEvaluating:
    def test_pass_promotion_and_readiness_succeed(self):
        story = Story(a_job(EVALUATING)).tell(
            news.registered(), news.eval_passed(), news.promoted(), news.approved(), news.deployment()
        )
        fact = story.last(JobSucceeded)
        assert story.job.state is SUCCEEDED
        assert (fact.fine_tuned_model, fact.model_id) == (news.MODEL.full_name, news.MODEL.model_id)
        assert (fact.promoted, fact.deployed) == (True, True)

    def test_without_auto_deploy_pass_and_promotion_are_enough(self):
        job = a_job(EVALUATING, spec=a_job_spec(auto_deploy=False))
        fact = Story(job).tell(news.eval_passed(), news.promoted()).last(JobSucceeded)
        assert (fact.promoted, fact.deployed, fact.fine_tuned_model) == (True, False, news.MODEL.full_name)

    def test_a_promotion_without_a_pass_is_not_enough(self):
        job = a_job(EVALUATING, spec=a_job_spec(auto_deploy=False))
        assert Story(job).tell(news.promoted()).job.state is EVALUATING

    def test_a_promotion_to_dev_is_none(self):
        job = a_job(EVALUATING, spec=a_job_spec(auto_deploy=False))
        assert Story(job).tell(news.eval_passed(), news.promoted(Stage.DEV)).job.state is EVALUATING

    def test_a_failed_deployment_ends_the_wait(self):
        story = Story(a_job(EVALUATING)).tell(news.eval_passed(), news.promoted(), news.approved())
        fact = story.tell(news.deployment(is_ready=False)).last(JobSucceeded)
        assert (fact.promoted, fact.deployed, fact.message) == (True, False, "not deployed: the probe failed")

    def test_an_older_generation_does_not_count(self):
        messages = (news.eval_passed(), news.promoted(), news.approved(generation=3))
        story = Story(a_job(EVALUATING)).tell(*messages, news.deployment(generation=2))
        assert story.job.state is EVALUATING
        assert story.tell(news.deployment(generation=4)).job.state is SUCCEEDED

    def test_serving_may_answer_before_the_approval_is_known(self):
        story = Story(a_job(EVALUATING), served=news.deployment(generation=2))
        story.tell(news.eval_passed(), news.promoted(), news.approved(generation=2))
        assert story.last(JobSucceeded).deployed

    def test_serving_is_waited_for_ten_minutes(self):
        story = Story(a_job(EVALUATING)).tell(news.promoted(), news.eval_passed())
        timer = story.timers[-1]
        assert (timer.payload, timer.at) == (
            DeploymentOverdue(job_id="ftjob-1"),
            NOON + timedelta(minutes=10),
        )
        assert story.later(minutes=9).tell(timer.payload).job.state is EVALUATING
        fact = story.later(minutes=1).tell(timer.payload).last(JobSucceeded)
        assert (fact.promoted, fact.deployed) == (True, False)

    @pytest.mark.parametrize(
        ("denial", "says"),
        [
            (news.eval_failed(), "the gate failed: safety 40 %"),
            (news.eval_inconclusive(), "the gate was inconclusive: 12 of 100 items"),
            (news.promotion_refused(), "promotion refused: it says why"),
            (news.stale(), "base model tiny has other files now"),
        ],
        ids=lambda value: getattr(value, "type", None) or value,
    )
    @pytest.mark.parametrize("order", [1, -1])
    def test_what_is_not_passed_succeeds_and_stays_in_dev(self, denial, says, order):
        story = Story(a_job(EVALUATING)).tell(*(news.registered(), denial)[::order])
        fact = story.last(JobSucceeded)
        assert (fact.promoted, fact.deployed, fact.model_id) == (False, False, news.MODEL.model_id)
        assert says in fact.message

    def test_an_artifact_that_cannot_be_copied_leaves_no_model(self):
        fact = Story(a_job(EVALUATING)).tell(news.promotion_refused("artifact")).last(JobSucceeded)
        assert (fact.promoted, fact.model_id, fact.fine_tuned_model) == (False, None, None)

    def test_a_base_registered_again_is_not_stale_any_more(self):
        story = Story(a_job(RUNNING)).tell(news.stale(), news.base_registered())
        story.tell(news.completed(), news.verified(), news.registered())
        assert story.job.state is EVALUATING

    def test_a_base_that_went_stale_during_training_is_remembered(self):
        story = Story(a_job(RUNNING)).tell(news.stale(), news.completed(), news.verified(), news.registered())
        assert (story.job.state, story.last(JobSucceeded).promoted) == (SUCCEEDED, False)

    def test_a_base_that_went_stale_takes_no_further_attempt(self):
        story = Story(a_job(STOPPING)).tell(news.stale(), news.released(), news.stopped())
        fact = story.last(JobFailed)
        assert (fact.failure_class, fact.code, fact.param) == ("user", "stale_base", "model")
        assert "base model tiny has other files now" in fact.message

    def test_registering_the_base_again_does_not_take_a_verdict_back(self):
        story = Story(a_job(EVALUATING)).tell(news.eval_failed(), news.stale(), news.base_registered())
        assert story.tell(news.registered()).job.state is SUCCEEDED

    def test_news_of_the_attempt_changes_nothing(self):
        story = Story(a_job(EVALUATING)).tell(news.lost(), news.failed(), news.preempted(), news.released())
        assert (story.job.state, story.events) == (EVALUATING, [])
