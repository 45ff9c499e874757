"""Each fact is kept as it was said, and what changes nothing is recorded with the reason."""

from datetime import timedelta

import pytest

from schemas.base import FailureClass
from schemas.job import JobCancelled, JobRequeued, JobStopping, StopReason
from schemas.lifecycle import JobState
from schemas.model import Stage
from schemas.specification import Resources
from services.scheduler.decide.decision import Decision, RunOverdue, StartOverdue, StopOverdue, Timer
from services.scheduler.decide.stop import strengthen
from services.scheduler.model import Approval, Stop, TrainingResult
from tests.builders import NOON, a_bundle, a_job, a_job_spec, a_stop
from tests.unit.scheduler import incoming
from tests.unit.scheduler.job_history import History

QUEUED, RUNNING, STOPPING, EVALUATING = (
    JobState.QUEUED,
    JobState.RUNNING,
    JobState.STOPPING,
    JobState.EVALUATING,
)


@pytest.mark.parametrize(
    "fact",
    [
        incoming.nodes_queued(),
        incoming.nodes_provisioned(),
        incoming.started(),
        incoming.written(),
        incoming.lost(),
        incoming.failed(),
        incoming.preempted(),
        incoming.verified(),
        incoming.eval_failed(),
        incoming.eval_inconclusive(),
        incoming.registered(),
        incoming.promoted(),
        incoming.promotion_refused(),
    ],
    ids=lambda fact: fact.type,
)
def test_whatever_comes_once_enough_was_waited_for_ends_the_stop(fact):
    history = History(a_job(STOPPING)).apply(incoming.released()).later(minutes=10)
    assert history.apply(fact).job.state is QUEUED


def test_a_base_registered_again_ends_the_stop_as_well():
    history = History(a_job(STOPPING)).apply(incoming.stale(), incoming.released()).later(minutes=10)
    assert history.apply(incoming.base_registered()).job.state is QUEUED


class TestKept:
    @pytest.mark.parametrize("bundle", [None, a_bundle(10)])
    def test_how_training_stopped(self, bundle):
        job = History(a_job(RUNNING)).apply(incoming.stopped(bundle)).job
        assert job.facts.ending == TrainingResult(completed=False, last_step=10, bundle=bundle)

    def test_a_last_bundle_whose_verdict_a_cancellation_waits_for(self):
        history = History(a_job(STOPPING, stop=a_stop(StopReason.CANCEL)))
        history.apply(incoming.completed(), incoming.released())
        assert history.job.state is STOPPING
        history.apply(incoming.verified())
        assert history.last(JobCancelled).artifact.bundle == incoming.FINAL

    @pytest.mark.parametrize("fact", [incoming.registered(), incoming.promoted()], ids=lambda fact: fact.type)
    def test_the_model_that_was_made(self, fact):
        assert History(a_job(EVALUATING)).apply(fact).job.evaluation.model == incoming.MODEL

    def test_the_slot_that_serving_is_to_answer_for(self):
        job = History(a_job(EVALUATING)).apply(incoming.approved(generation=2)).job
        assert job.evaluation.approval == Approval(incoming.MODEL.full_name, 2)

    def test_that_a_class_of_failure_is_no_preemption(self):
        stop = a_stop(StopReason.FAILURE)
        history = History(a_job(STOPPING, stop=stop)).apply(incoming.released(), incoming.stopped())
        assert (history.last(JobRequeued).failure_class, history.job.preempted_at) == ("infra", ())


class TestIgnored:
    def test_a_release_of_nodes_that_no_attempt_had(self):
        history = History(a_job(QUEUED)).apply(incoming.released())
        assert history.ignored == ["attempt 1, present: 0"]

    def test_a_promotion_to_another_stage(self):
        assert History(a_job(EVALUATING)).apply(incoming.promoted(Stage.DEV)).ignored == ["stage dev"]


class TestRunOverdue:
    def test_stops_what_runs_though_its_nodes_were_released(self):
        spec = a_job_spec(resources=Resources(max_run_seconds=60))
        job = a_job(RUNNING, spec=spec).with_run(ends_by=NOON)
        history = History(job).apply(incoming.released(), RunOverdue(job_id="ftjob-1", attempt=1))
        assert (history.job.state, history.last(JobStopping).failure_class) == (STOPPING, FailureClass.USER)
        waits = Timer(StopOverdue(job_id="ftjob-1", attempt=1), NOON + timedelta(minutes=10))
        assert history.timers == [waits] * 2

    def test_stops_nobody_twice(self):
        job = a_job(STOPPING).with_run(ends_by=NOON)
        history = History(job).apply(RunOverdue(job_id="ftjob-1", attempt=1))
        assert (history.job, history.events) == (job, [])


@pytest.mark.parametrize(
    ("requeues", "reason"), [({}, StopReason.PAUSE), ({FailureClass.INFRA: 5}, StopReason.FAILURE)]
)
def test_a_failure_is_stronger_than_a_pause_once_its_budget_is_spent(requeues, reason):
    job = a_job(STOPPING, stop=a_stop(StopReason.PAUSE), requeues=requeues)
    assert strengthen(job, a_stop(StopReason.FAILURE)).job.present.stop.reason is reason


def test_a_budget_is_stronger_than_a_failure_that_is_final():
    job = a_job(STOPPING, stop=a_stop(StopReason.FAILURE, failure_class=FailureClass.USER))
    asked: Stop = a_stop(StopReason.BUDGET)
    assert strengthen(job, asked).job.present.stop.reason is StopReason.BUDGET


def test_of_two_decisions_both_count_one_after_the_other():
    timers = [Timer(kind(job_id="ftjob-1", attempt=1), NOON) for kind in (StartOverdue, RunOverdue)]
    first = Decision(a_job(QUEUED), (incoming.pause(),), (timers[0],), "the first reason")
    later = Decision(a_job(RUNNING), (incoming.resume(),), (timers[1],))
    both = Decision(later.job, (incoming.pause(), incoming.resume()), tuple(timers), "the first reason")
    assert first.then(later) == both
    assert later.then(first).ignored == "the first reason"
