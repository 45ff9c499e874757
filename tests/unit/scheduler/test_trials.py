"""A trial of a sweep is a job like any other, whose end its sweep decides about."""

import pytest

from schemas.base import TrialOf
from schemas.identity import config_hash
from schemas.job import JobCancelled, JobEvaluating, JobSucceeded, StopReason
from schemas.lifecycle import JobState
from services.scheduler.decide import commands
from tests.builders import NOON, a_bundle, a_job, a_job_spec, a_sha
from tests.unit.scheduler import incoming
from tests.unit.scheduler.job_history import History

SPEC = a_job_spec(trial=TrialOf(sweep_id="sweep-1", number=7))
TRAINED = (incoming.written(a_bundle(30)), incoming.verified(a_bundle(30)))
ENDED = (incoming.released(), incoming.stopped())


def test_what_it_trained_is_named_and_it_ends_at_once_without_the_gate():
    history = History(a_job(JobState.RUNNING, spec=SPEC)).apply(
        incoming.written(incoming.FINAL), incoming.verified(incoming.FINAL), incoming.completed()
    )
    assert history.types[-2:] == ["JobEvaluating", "JobSucceeded"]
    assert history.last(JobEvaluating).trial == SPEC.trial
    ended = history.last(JobSucceeded)
    assert (ended.promoted, ended.deployed, ended.model_id) == (False, False, None)
    assert ended.message == "trained as trial 7 of sweep-1"


def test_a_verdict_on_the_best_one_changes_its_job_no_more():
    history = History(a_job(JobState.SUCCEEDED, spec=SPEC)).apply(
        incoming.registered(), incoming.eval_passed(), incoming.promoted()
    )
    assert (history.job.state, history.types) == (JobState.SUCCEEDED, [])


@pytest.mark.parametrize("reason", ["user", "budget", "prune"])
def test_who_ends_it_is_named_and_nothing_is_registered(reason: str):
    history = History(a_job(JobState.RUNNING, spec=SPEC)).apply(*TRAINED, incoming.cancel(reason), *ENDED)
    cancelled = history.last(JobCancelled)
    assert (cancelled.reason, cancelled.artifact) == (reason, None)


def test_pruning_is_a_cancellation_with_the_same_grace():
    history = History(a_job(JobState.RUNNING, spec=SPEC)).apply(*TRAINED, incoming.cancel("prune"))
    stop = history.job.present.stop
    assert (stop.reason, stop.deadline > NOON) == (StopReason.CANCEL, True)


def test_a_waiting_one_is_pruned_at_once():
    history = History(a_job(JobState.QUEUED, attempt=0, spec=SPEC)).apply(incoming.cancel("prune"))
    assert history.last(JobCancelled).reason == "prune"


def test_a_retry_is_in_no_sweep():
    again = commands.like(a_job(JobState.CANCELLED, spec=SPEC), incoming.retry())
    assert again.spec.trial is None
    assert again.spec.model_copy(update={"trial": SPEC.trial}) == SPEC


def test_its_place_in_a_sweep_is_no_part_of_its_identity():
    assert config_hash(SPEC, a_sha("v")) == config_hash(a_job_spec(), a_sha("v"))
