from itertools import permutations

import pytest

from schemas.artifacts import DatasetCounts, DatasetFiles
from schemas.base import CommandRefused
from schemas.dataset import DatasetAccepted, DatasetDeleted, DatasetReady, DatasetRejected
from services.scheduler.decide.dataset import datasets_of, supersedes
from services.scheduler.model import Dataset, DatasetState
from tests.builders import a_dataset, a_dataset_ref, a_file_ref, a_sha

COUNTS = DatasetCounts(rows=2000, windows=400, tokens=90_000, loss_tokens=40_000)
WHO = {"dataset_id": "ds-1", "tenant": "acme"}
ACCEPTED = DatasetAccepted(**WHO, base_sha=a_sha("tiny"))
READY = DatasetReady(
    **WHO,
    dataset_version=a_dataset_ref().version,
    manifest_sha256=a_dataset_ref().manifest_sha256,
    base_sha=a_sha("tiny"),
    template_sha256=a_sha("template"),
    counts=COUNTS,
    benchmarks={"stdlib": a_sha("benchmark")},
    suites={"refusals": a_sha("suite")},
    files=DatasetFiles(training=a_file_ref().sha256),
)
REJECTED = DatasetRejected(**WHO, code="empty", message="no row is left")
DELETED = DatasetDeleted(dataset_version=a_dataset_ref().version, tenant="acme", dataset_ids=("ds-1", "ds-2"))


def refused(command: str = "SubmitDataset") -> CommandRefused:
    return CommandRefused(
        subject_id="ds-1", command=command, command_id="c-1", code="bad", message="it says why", tenant="acme"
    )


def state_after(*events: object) -> DatasetState | None:
    known: Dataset | None = None
    for each in events:
        for dataset in datasets_of(each):
            if dataset.dataset_id == "ds-1" and supersedes(dataset, known):
                known = dataset
    return known.state if known else None


def test_what_is_ready_is_kept_whole():
    assert datasets_of(READY) == (a_dataset(message=""),)


@pytest.mark.parametrize(
    ("event", "state", "code", "message"),
    [
        (ACCEPTED, DatasetState.ACCEPTED, "", ""),
        (REJECTED, DatasetState.REJECTED, "dataset_empty", "no row is left"),
        (refused(), DatasetState.REFUSED, "bad", "it says why"),
    ],
)
def test_each_word_of_ingest_is_about_one_dataset(event, state, code, message):
    (dataset,) = datasets_of(event)
    assert dataset == Dataset(
        "ds-1", "acme", state, message, code, base_sha=getattr(event, "base_sha", Dataset.base_sha)
    )


def test_a_deleted_version_takes_each_request_that_ended_in_it_along():
    message = f"dataset version {a_dataset_ref().version[:12]} was deleted"
    assert datasets_of(DELETED) == (
        Dataset("ds-1", "acme", DatasetState.DELETED, message),
        Dataset("ds-2", "acme", DatasetState.DELETED, message),
    )


def test_a_refusal_that_names_no_tenant_is_of_nobodys_dataset():
    (dataset,) = datasets_of(refused().model_copy(update={"tenant": None}))
    assert dataset.tenant == ""


def test_a_refusal_of_another_command_says_nothing():
    assert datasets_of(refused("DeleteDataset")) == ()


@pytest.mark.parametrize("order", list(permutations([ACCEPTED, READY, DELETED])))
def test_deleted_stands_in_every_order(order):
    assert state_after(*order) is DatasetState.DELETED


@pytest.mark.parametrize("first", [ACCEPTED, READY, REJECTED])
def test_refusing_a_second_request_of_the_same_name_takes_nothing_back(first):
    assert state_after(first, refused()) is not DatasetState.REFUSED


def test_a_request_that_was_refused_may_be_made_again():
    assert state_after(refused(), ACCEPTED, READY) is DatasetState.READY


@pytest.mark.parametrize(("last", "state"), [(READY, "ready"), (REJECTED, "rejected")])
def test_the_first_decision_stands(last, state):
    other = READY if last is REJECTED else REJECTED
    assert state_after(ACCEPTED, last, other) == state
