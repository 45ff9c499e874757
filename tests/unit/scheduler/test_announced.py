"""What is announced of a job's ends and pauses, whole: its readers see nothing else."""

from dataclasses import replace
from datetime import timedelta

import pytest

from schemas.base import FailureClass
from schemas.job import JobCancelled, JobFailed, JobPaused, JobRequeued, PauseReason
from schemas.lifecycle import JobState
from services.scheduler.decide import admission, ending, facts
from services.scheduler.decide.decision import StartOverdue
from services.scheduler.model import Base, Facts, TrainingResult
from tests.builders import NOON, a_bundle, a_job, a_sha
from tests.unit.scheduler.job_history import VIEW

JOB = a_job(JobState.STOPPING, attempt=3)
WHOSE = {"job_id": "ftjob-1", "tenant": "acme", "attempt": 3}
NEWEST = a_bundle(step=40)


@pytest.mark.parametrize("reason", ["user", "budget", "alert", "prune"])
def test_the_end_of_a_job_that_was_cancelled(reason):
    decision = ending.cancelled(JOB, reason)
    assert decision.events == (JobCancelled(**WHOSE, reason=reason, artifact=None, last_step=0),)
    assert decision.job.state is JobState.CANCELLED


def test_the_newest_bundle_of_a_job_that_was_cancelled_is_kept_and_not_deployed():
    (fact,) = ending.cancelled(replace(JOB, verified=frozenset({NEWEST})), "user").events
    assert (fact.artifact.bundle, fact.artifact.auto_deploy) == (NEWEST, False)
    assert (fact.artifact.job_id, fact.artifact.attempt, fact.last_step) == ("ftjob-1", 3, 40)


@pytest.mark.parametrize("reason", PauseReason)
def test_a_pause(reason):
    decision = ending.paused(replace(JOB, verified=frozenset({NEWEST})), reason)
    assert decision.events == (JobPaused(**WHOSE, reason=reason, resume=NEWEST),)
    assert decision.job.state is JobState.PAUSED


def test_a_failure():
    decision = admission.fail(JOB, FailureClass.USER, "bad", "it says why", param="suffix")
    failed = JobFailed(
        **WHOSE, failure_class=FailureClass.USER, code="bad", message="it says why", param="suffix"
    )
    assert decision.events == (failed,)


def test_a_new_try():
    job = replace(JOB, verified=frozenset({NEWEST}))
    decision = ending.requeue_or_fail(job, FailureClass.INFRA, "a node was lost", VIEW)
    assert decision.events == (
        JobRequeued(
            **WHOSE,
            failure_class=FailureClass.INFRA,
            resume=NEWEST,
            not_before=decision.job.not_before,
            message="a node was lost",
        ),
    )
    assert (decision.job.state, decision.job.requeues) == (JobState.QUEUED, {FailureClass.INFRA: 1})


def test_the_last_try_says_how_many_were_before():
    job = replace(JOB, requeues={FailureClass.INFRA: 1_000})
    (fact,) = ending.requeue_or_fail(job, FailureClass.INFRA, "a node was lost", VIEW).events
    assert (fact.code, fact.message, fact.param, fact.attempt) == (
        "infra",
        "a node was lost (requeued 1000 times for class infra before)",
        None,
        3,
    )


@pytest.mark.parametrize(
    ("known", "state"),
    [
        (Facts(), JobState.STOPPING),
        (
            Facts(released_at=NOON, ending=TrainingResult(completed=False, last_step=0, bundle=None)),
            JobState.QUEUED,
        ),
    ],
    ids=["nothing is back", "its end is known"],
)
def test_a_start_that_is_overdue(known, state):
    job = a_job(JobState.PROVISIONING, facts=known)
    view = replace(VIEW, now=job.present.start_deadline)
    assert facts.on_start_overdue(job, StartOverdue(job_id=job.id, attempt=1), view).job.state is state


def test_other_files_of_its_base_model_end_a_stop_that_is_over():
    """As every fact of a job may: what is known is looked at again, at the time of the message."""
    stopping = a_job(JobState.STOPPING, facts=Facts(released_at=NOON))
    late = replace(VIEW, now=NOON + timedelta(days=1))
    base = Base(a_sha("other"))
    assert facts.on_base_replaced(stopping, base, VIEW).job.state is JobState.STOPPING
    assert facts.on_base_replaced(stopping, base, late).job.state is not JobState.STOPPING
