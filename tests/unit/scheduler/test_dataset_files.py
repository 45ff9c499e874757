"""A job's files are those that its dataset was made of."""

import pytest

from schemas.artifacts import DatasetFiles
from schemas.job import JobFailed
from schemas.lifecycle import JobState
from tests.builders import a_dataset, a_file_ref, a_job, a_job_spec, a_sha
from tests.unit.scheduler.job_history import History

VALIDATING, QUEUED = JobState.VALIDATING, JobState.QUEUED


@pytest.mark.parametrize(
    ("param", "changes"),
    [
        ("training_file", {"training_file": a_file_ref("other.jsonl")}),
        ("validation_file", {"validation_file": a_file_ref("other.jsonl")}),
        ("holdout", {"holdout": a_file_ref("other.jsonl")}),
    ],
)
def test_files_that_its_dataset_was_not_made_of_fail_the_job(param, changes):
    history = History(a_job(VALIDATING, spec=a_job_spec(**changes))).apply(a_dataset())
    fact = history.last(JobFailed)
    assert (fact.failure_class, fact.code, fact.param) == ("user", "dataset_mismatch", param)
    assert a_sha("other.jsonl")[:12] in fact.message


def test_a_job_may_not_leave_out_the_holdout_of_its_dataset():
    files = DatasetFiles(training=a_file_ref().sha256, holdout=a_sha("holdout"))
    fact = History(a_job(VALIDATING)).apply(a_dataset(files=files)).last(JobFailed)
    assert (fact.code, fact.param) == ("dataset_mismatch", "holdout")
    assert "found none" in fact.message


def test_a_job_of_before_datasets_named_their_files_continues():
    assert History(a_job(VALIDATING)).apply(a_dataset(files=None)).job.state is QUEUED
