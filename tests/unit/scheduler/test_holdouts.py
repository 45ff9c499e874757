"""A holdout that the gate could not judge by fails its job before anything is trained."""

import pytest

from schemas.artifacts import DatasetCounts
from schemas.gate import GateSpec
from schemas.job import JobFailed
from schemas.lifecycle import JobState
from tests.builders import a_dataset, a_file_ref, a_job, a_job_spec
from tests.unit.scheduler.job_history import History

VALIDATING, QUEUED = JobState.VALIDATING, JobState.QUEUED
HOLDOUT = a_file_ref("holdout.jsonl")


def history(*, gate: GateSpec | None = None, with_holdout: bool = True, **counts: int | None) -> History:
    spec = a_job_spec(holdout=HOLDOUT if with_holdout else None, gate=gate or GateSpec())
    dataset_counts = DatasetCounts(rows=2000, windows=400, tokens=90_000, loss_tokens=40_000, **counts)
    return History(a_job(VALIDATING, spec=spec)).apply(a_dataset(files=None, counts=dataset_counts))


@pytest.mark.parametrize(
    "counts",
    [
        {"holdout_rows": 1000},
        {"holdout_rows": 1000, "long_answers": 100, "answer_tokens": 128},
        {"holdout_rows": None},
    ],
)
def test_one_that_the_gate_can_judge_by_continues(counts):
    assert history(**counts).job.state is QUEUED


@pytest.mark.parametrize(
    ("counts", "code", "message"),
    [
        ({"holdout_rows": 30}, "holdout_too_small", "30 items"),
        ({"holdout_rows": 0}, "holdout_too_small", "0 items"),
        (
            {"holdout_rows": 1000, "long_answers": 101, "answer_tokens": 128},
            "answers_too_long",
            "101 of 1000 reference answers of the holdout have more than the 128 tokens",
        ),
    ],
)
def test_one_that_it_cannot_judge_by_fails_the_job_and_says_what_to_do(counts, code, message):
    failed = history(**counts)
    fact = failed.last(JobFailed)
    assert (failed.job.state, fact.failure_class, fact.code, fact.param) == (
        JobState.FAILED,
        "user",
        code,
        "holdout",
    )
    assert message in fact.message
    assert ":" in fact.message


def test_perplexity_asks_for_no_answer():
    gate = GateSpec.model_validate({"holdout": {"metric": "perplexity"}})
    assert history(gate=gate, holdout_rows=1000, long_answers=1000, answer_tokens=128).job.state is QUEUED


def test_texts_have_no_answer_that_another_metric_could_compare():
    texts = {"holdout_rows": 1000, "holdout_texts": 1000}
    failed = history(**texts).last(JobFailed)
    assert (failed.failure_class, failed.code, failed.param) == (
        "user",
        "holdout_without_answers",
        "gate.holdout.metric",
    )
    assert "Nearest that works: gate.holdout.metric perplexity" in failed.message
    gate = {"holdout": {"metric": "perplexity"}}
    assert history(gate=GateSpec.model_validate(gate), **texts).job.state is QUEUED
    judged = GateSpec.model_validate(gate | {"judge": {"url": "http://judge", "model": "m"}})
    assert history(gate=judged, **texts).last(JobFailed).param == "gate.judge"


def test_a_stricter_gate_needs_more_items():
    gate = GateSpec.model_validate({"holdout": {"min_items": 2000}})
    assert history(gate=gate, holdout_rows=1000).last(JobFailed).code == "holdout_too_small"


def test_what_a_dataset_counts_is_nothing_to_a_job_without_a_holdout():
    assert history(with_holdout=False, holdout_rows=1).job.state is QUEUED
