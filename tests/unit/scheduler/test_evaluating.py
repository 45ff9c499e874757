"""From the last bundle to the end of the job: verdict, promotion, deployment, each in any order."""

from datetime import timedelta

import pytest

from schemas.deployment import DeploymentFailed, DeploymentReady
from schemas.job import JobFailed, JobSucceeded
from schemas.lifecycle import JobState
from schemas.model import Stage
from services.scheduler.decide.decision import DeploymentOverdue
from services.scheduler.decide.facts import deployment_of
from tests.builders import NOON, a_job, a_job_spec, a_sha
from tests.unit.scheduler import incoming
from tests.unit.scheduler.job_history import History

VALIDATING, QUEUED, PROVISIONING, RUNNING, STOPPING, PAUSED, EVALUATING, SUCCEEDED, FAILED, CANCELLED = (
    JobState
)


SLOT = {
    "pool": "serve-1", "base_sha": a_sha("base"), "slot": "ft:tiny:acme::1", "tenant": "acme",
    "digest": a_sha("model"), "model_id": "mv-1", "generation": 3,
}  # fmt: skip


@pytest.mark.parametrize(
    ("fact", "end"),
    [
        (DeploymentReady(**SLOT, served_name="x@1", replicas=()), (True, "")),
        (DeploymentFailed(**SLOT, code="load", reason="no memory"), (False, "load: no memory")),
    ],
)
def test_what_serving_says_is_of_one_generation_of_a_slot(fact, end):
    deployment = deployment_of(fact)
    assert (deployment.slot, deployment.tenant, deployment.generation) == ("ft:tiny:acme::1", "acme", 3)
    assert (deployment.is_ready, deployment.message) == end


class TestEvaluating:
    def test_pass_promotion_and_readiness_succeed(self):
        history = History(a_job(EVALUATING)).apply(
            incoming.registered(),
            incoming.eval_passed(),
            incoming.promoted(),
            incoming.approved(),
            incoming.deployment(),
        )
        fact = history.last(JobSucceeded)
        assert history.job.state is SUCCEEDED
        assert (fact.fine_tuned_model, fact.model_id) == (incoming.MODEL.full_name, incoming.MODEL.model_id)
        assert (fact.promoted, fact.deployed) == (True, True)

    def test_without_auto_deploy_pass_and_promotion_are_enough(self):
        job = a_job(EVALUATING, spec=a_job_spec(auto_deploy=False))
        fact = History(job).apply(incoming.eval_passed(), incoming.promoted()).last(JobSucceeded)
        assert (fact.promoted, fact.deployed, fact.fine_tuned_model) == (
            True,
            False,
            incoming.MODEL.full_name,
        )

    def test_a_promotion_without_a_pass_is_not_enough(self):
        job = a_job(EVALUATING, spec=a_job_spec(auto_deploy=False))
        assert History(job).apply(incoming.promoted()).job.state is EVALUATING

    def test_a_promotion_to_dev_is_none(self):
        job = a_job(EVALUATING, spec=a_job_spec(auto_deploy=False))
        assert (
            History(job).apply(incoming.eval_passed(), incoming.promoted(Stage.DEV)).job.state is EVALUATING
        )

    def test_a_failed_deployment_ends_the_wait(self):
        history = History(a_job(EVALUATING)).apply(
            incoming.eval_passed(), incoming.promoted(), incoming.approved()
        )
        fact = history.apply(incoming.deployment(is_ready=False)).last(JobSucceeded)
        assert (fact.promoted, fact.deployed, fact.message) == (True, False, "not deployed: the probe failed")

    def test_an_older_generation_does_not_count(self):
        messages = (incoming.eval_passed(), incoming.promoted(), incoming.approved(generation=3))
        history = History(a_job(EVALUATING)).apply(*messages, incoming.deployment(generation=2))
        assert history.job.state is EVALUATING
        assert history.apply(incoming.deployment(generation=4)).job.state is SUCCEEDED

    def test_serving_may_answer_before_the_approval_is_known(self):
        history = History(a_job(EVALUATING), served=incoming.deployment(generation=2))
        history.apply(incoming.eval_passed(), incoming.promoted(), incoming.approved(generation=2))
        assert history.last(JobSucceeded).deployed

    def test_serving_is_waited_for_ten_minutes(self):
        history = History(a_job(EVALUATING)).apply(incoming.promoted(), incoming.eval_passed())
        timer = history.timers[-1]
        assert (timer.payload, timer.at) == (
            DeploymentOverdue(job_id="ftjob-1"),
            NOON + timedelta(minutes=10),
        )
        assert history.later(minutes=9).apply(timer.payload).job.state is EVALUATING
        fact = history.later(minutes=1).apply(timer.payload).last(JobSucceeded)
        assert (fact.promoted, fact.deployed) == (True, False)

    @pytest.mark.parametrize(
        ("denial", "says"),
        [
            (incoming.eval_failed(), "the gate failed: safety 40 %"),
            (incoming.eval_inconclusive(), "the gate was inconclusive: 12 of 100 items"),
            (incoming.promotion_refused(), "promotion refused: it says why"),
            (incoming.stale(), "base model tiny has other files now"),
        ],
        ids=lambda value: getattr(value, "type", None) or value,
    )
    @pytest.mark.parametrize("order", [1, -1])
    def test_what_is_not_passed_succeeds_and_stays_in_dev(self, denial, says, order):
        history = History(a_job(EVALUATING)).apply(*(incoming.registered(), denial)[::order])
        fact = history.last(JobSucceeded)
        assert (fact.promoted, fact.deployed, fact.model_id) == (False, False, incoming.MODEL.model_id)
        assert says in fact.message

    def test_an_artifact_that_cannot_be_copied_leaves_no_model(self):
        fact = History(a_job(EVALUATING)).apply(incoming.promotion_refused("artifact")).last(JobSucceeded)
        assert (fact.promoted, fact.model_id, fact.fine_tuned_model) == (False, None, None)

    def test_a_base_registered_again_is_not_stale_any_more(self):
        history = History(a_job(RUNNING)).apply(incoming.stale(), incoming.base_registered())
        history.apply(incoming.completed(), incoming.verified(), incoming.registered())
        assert history.job.state is EVALUATING

    def test_a_base_that_went_stale_during_training_is_remembered(self):
        history = History(a_job(RUNNING)).apply(
            incoming.stale(), incoming.completed(), incoming.verified(), incoming.registered()
        )
        assert (history.job.state, history.last(JobSucceeded).promoted) == (SUCCEEDED, False)

    def test_a_base_that_went_stale_takes_no_further_attempt(self):
        history = History(a_job(STOPPING)).apply(incoming.stale(), incoming.released(), incoming.stopped())
        fact = history.last(JobFailed)
        assert (fact.failure_class, fact.code, fact.param) == ("user", "stale_base", "model")
        assert "base model tiny has other files now" in fact.message

    def test_registering_the_base_again_does_not_take_a_verdict_back(self):
        history = History(a_job(EVALUATING)).apply(
            incoming.eval_failed(), incoming.stale(), incoming.base_registered()
        )
        assert history.apply(incoming.registered()).job.state is SUCCEEDED

    def test_news_of_the_attempt_changes_nothing(self):
        history = History(a_job(EVALUATING)).apply(
            incoming.lost(), incoming.failed(), incoming.preempted(), incoming.released()
        )
        assert (history.job.state, history.events) == (EVALUATING, [])
