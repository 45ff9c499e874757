"""At its budget a job ends as by a cancellation, with what it has trained."""

import pytest

from schemas.job import JobCancelled, JobStopping, StopReason
from schemas.lifecycle import JobState
from tests.builders import NOON, a_bundle, a_job, a_job_spec
from tests.unit.scheduler import incoming
from tests.unit.scheduler.job_history import History

ENDED = (incoming.released(), incoming.stopped())
TRAINED = (incoming.written(a_bundle(30)), incoming.verified(a_bundle(30)))


def a_running_job() -> History:
    return History(a_job(JobState.RUNNING, spec=a_job_spec(max_cost="5.00"))).apply(*TRAINED)


def test_the_job_ends_with_its_newest_checkpoint():
    history = a_running_job().apply(incoming.budget_reached(), *ENDED)
    stopping = history.last(JobStopping)
    assert (stopping.reason, stopping.message) == (StopReason.BUDGET, "4.65 of 5 US dollars are spent")
    assert stopping.deadline > NOON
    cancelled = history.last(JobCancelled)
    assert (cancelled.reason, cancelled.artifact.bundle) == ("budget", a_bundle(30))
    assert not cancelled.artifact.auto_deploy


def test_what_completes_meanwhile_is_kept_and_not_asked_of_the_gate():
    final = incoming.FINAL
    last = (incoming.written(final), incoming.completed(), incoming.verified(final), incoming.released())
    history = a_running_job().apply(incoming.budget_reached(), *last)
    assert history.last(JobCancelled).artifact.bundle == final


def test_an_attempt_that_is_over_ends_no_later_one():
    history = a_running_job().apply(incoming.budget_reached(attempt=0))
    assert history.job.state is JobState.RUNNING
    assert history.ignored == ["budget reached by attempt 0, which is over"]


def test_a_node_that_is_taken_back_does_not_save_the_job_from_its_budget():
    history = a_running_job().apply(incoming.preempted(), incoming.budget_reached(), *ENDED)
    assert history.last(JobCancelled).reason == "budget"


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.PAUSED, JobState.EVALUATING, JobState.SUCCEEDED])
def test_a_job_that_does_not_train_is_left_as_it_is(state: JobState):
    history = History(a_job(state, spec=a_job_spec(max_cost="5.00"))).apply(incoming.budget_reached())
    assert (history.job.state, history.types) == (state, [])
