"""Until when a job may stay in its phase, and which of them count as overdue."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from services.scheduler.decide.decision import Policy
from services.scheduler.decide.overdue import MARGIN, WITH_DEADLINES, Phase, count_overdue, deadline
from services.scheduler.model import Facts, Job, JobState
from tests.builders import NOON, a_job, a_stop, an_evaluation

POLICY = Policy()
MINUTE = timedelta(minutes=1)
PROVISIONING, RUNNING, STOPPING, EVALUATING = WITH_DEADLINES


def phase_of(job: Job) -> Phase:
    return Phase(job.state, job.present, job.evaluation.gated_at)


def running(**changes: object) -> Job:
    job = a_job(RUNNING)
    return replace(job, run=replace(job.present, **changes))


PHASES = {
    "a gang that is not complete": (
        a_job(PROVISIONING),
        a_job(PROVISIONING).present.start_deadline + POLICY.start_slack,
    ),
    "training without a longest time": (running(), None),
    "training with a longest time": (running(ends_by=NOON + MINUTE), NOON + MINUTE),
    "training whose nodes are gone": (running(facts=Facts(released_at=NOON)), NOON + POLICY.settle_within),
    "a stop whose nodes are not back": (
        a_job(STOPPING, stop=replace(a_stop(), deadline=NOON + 3 * MINUTE)),
        NOON + 3 * MINUTE,
    ),
    "a stop whose nodes are back": (
        a_job(STOPPING, facts=Facts(released_at=NOON + MINUTE), stop=replace(a_stop(), since=NOON)),
        NOON + MINUTE + POLICY.settle_within,
    ),
    "a model that the gate has": (a_job(EVALUATING), None),
    "a model that serving has": (
        a_job(EVALUATING, evaluation=an_evaluation(gated_at=NOON)),
        NOON + POLICY.deploy_within,
    ),
}


@pytest.mark.parametrize(("job", "until"), PHASES.values(), ids=PHASES)
def test_the_deadline_of_a_phase(job: Job, until: datetime | None):
    assert deadline(phase_of(job), POLICY) == until


@pytest.mark.parametrize(("job", "until"), PHASES.values(), ids=PHASES)
def test_what_stays_for_longer_than_the_margin_is_overdue(job: Job, until: datetime | None):
    phases = [phase_of(job), phase_of(job)]
    nobody = dict.fromkeys(WITH_DEADLINES, 0)
    if until is None:
        assert count_overdue(phases, now=NOON + timedelta(days=1000), policy=POLICY) == nobody
        return
    assert count_overdue(phases, now=until + MARGIN, policy=POLICY) == nobody
    late = count_overdue(phases, now=until + MARGIN + timedelta(seconds=1), policy=POLICY)
    assert late == nobody | {job.state: 2}


def test_a_phase_without_jobs_counts_none():
    assert count_overdue([], now=NOON, policy=POLICY) == dict.fromkeys(WITH_DEADLINES, 0)
    assert JobState.VALIDATING not in WITH_DEADLINES
