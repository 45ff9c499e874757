"""Nothing is trained on files that the base model's name does not point to any more."""

import pytest

from schemas.job import JobFailed, ResumeJob
from schemas.lifecycle import JobState
from shared.errors import Refused
from tests.builders import a_dataset, a_job
from tests.unit.scheduler import incoming
from tests.unit.scheduler.job_history import History

RESUME = ResumeJob(job_id="ftjob-1", tenant="acme")


@pytest.mark.parametrize("state", [JobState.VALIDATING, JobState.QUEUED])
def test_what_has_not_begun_fails_as_the_users(state):
    history = History(a_job(state)).apply(incoming.stale())
    fact = history.last(JobFailed)
    assert (history.job.state, fact.failure_class, fact.code) == (JobState.FAILED, "user", "stale_base")
    assert "submit it again" in fact.message


def test_what_is_paused_waits_for_the_old_files_and_is_not_resumed_without_them():
    history = History(a_job(JobState.PAUSED)).apply(incoming.stale())
    assert (history.job.state, history.events) == (JobState.PAUSED, [])
    with pytest.raises(Refused) as refused:
        history.apply(RESUME)
    assert refused.value.code == "stale_base"
    history.apply(incoming.base_registered(), a_dataset(), RESUME)
    assert history.job.state is JobState.QUEUED


@pytest.mark.parametrize("state", [JobState.PROVISIONING, JobState.RUNNING, JobState.EVALUATING])
def test_what_is_under_way_continues(state):
    assert History(a_job(state)).apply(incoming.stale()).job.state is state
