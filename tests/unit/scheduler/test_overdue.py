"""Until when a job may stay in its state, and which of them count as overdue."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from schemas.lifecycle import JobState
from services.scheduler.decide.decision import Policy
from services.scheduler.decide.overdue import MARGIN, WITH_DEADLINES, OpenJob, count_overdue, deadline
from services.scheduler.model import Facts, Job
from tests.builders import NOON, a_job, a_stop, an_evaluation

POLICY = Policy()
MINUTE = timedelta(minutes=1)
PROVISIONING, RUNNING, STOPPING, EVALUATING = WITH_DEADLINES


def open_job(job: Job) -> OpenJob:
    return OpenJob(job.state, job.present, job.evaluation.gated_at)


def running(**changes: object) -> Job:
    job = a_job(RUNNING)
    return replace(job, run=replace(job.present, **changes))


OPEN_JOBS = {
    "a gang that is not complete": (
        a_job(PROVISIONING),
        a_job(PROVISIONING).present.start_deadline + POLICY.start_slack,
    ),
    "training without a longest time": (running(), None),
    "training with a longest time": (running(ends_by=NOON + MINUTE), NOON + MINUTE),
    "training whose nodes are gone": (
        running(facts=Facts(released_at=NOON)),
        NOON + POLICY.last_facts_within,
    ),
    "a stop whose nodes are not back": (
        a_job(STOPPING, stop=replace(a_stop(), deadline=NOON + 3 * MINUTE)),
        NOON + 3 * MINUTE,
    ),
    "a stop whose nodes are back": (
        a_job(STOPPING, facts=Facts(released_at=NOON + MINUTE), stop=replace(a_stop(), since=NOON)),
        NOON + MINUTE + POLICY.last_facts_within,
    ),
    "a model that the gate has": (a_job(EVALUATING), None),
    "a model that serving has": (
        a_job(EVALUATING, evaluation=an_evaluation(gated_at=NOON)),
        NOON + POLICY.deploy_within,
    ),
}


@pytest.mark.parametrize(("job", "until"), OPEN_JOBS.values(), ids=OPEN_JOBS)
def test_the_deadline_of_a_state(job: Job, until: datetime | None):
    assert deadline(open_job(job), POLICY) == until


@pytest.mark.parametrize(("job", "until"), OPEN_JOBS.values(), ids=OPEN_JOBS)
def test_what_stays_for_longer_than_the_margin_is_overdue(job: Job, until: datetime | None):
    open_jobs = [open_job(job), open_job(job)]
    nobody = dict.fromkeys(WITH_DEADLINES, 0)
    if until is None:
        assert count_overdue(open_jobs, now=NOON + timedelta(days=1000), policy=POLICY) == nobody
        return
    assert count_overdue(open_jobs, now=until + MARGIN, policy=POLICY) == nobody
    late = count_overdue(open_jobs, now=until + MARGIN + timedelta(seconds=1), policy=POLICY)
    assert late == nobody | {job.state: 2}


def test_a_state_without_jobs_counts_none():
    assert count_overdue([], now=NOON, policy=POLICY) == dict.fromkeys(WITH_DEADLINES, 0)
    assert JobState.VALIDATING not in WITH_DEADLINES
