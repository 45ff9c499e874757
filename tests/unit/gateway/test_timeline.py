"""What people read of a dataset in the timeline of a job."""

import pytest

from schemas.artefacts import DatasetCounts
from schemas.dataset import DatasetReady, DatasetRejected
from services.gateway.timeline import sentence
from tests.builders import a_sha

NOTHING = "0 bad, 0 exact duplicates, 0 near duplicates, 0 contaminated"
LEAKS = "rows of the gate's own sources are trained on: arc 3"
FOUND = {
    "rejected_rows": 4,
    "exact_duplicates": 2,
    "near_duplicates": 1,
    "contaminated_rows": 2,
    "contaminated_by_source": {"holdout": 1, "arc": 1},
    "training_file_rows": 69,
}


def ready(**counts: object) -> DatasetReady:
    fields = {"rows": 60, "windows": 1, "tokens": 9, "loss_tokens": 3} | counts
    return DatasetReady(
        dataset_id="ds-1",
        tenant="acme",
        dataset_version=a_sha("version"),
        manifest_sha256=a_sha("manifest"),
        base_sha=a_sha("base"),
        template_sha256=a_sha("template"),
        counts=DatasetCounts(**fields),
        benchmarks={},
        suites={},
    )


@pytest.mark.parametrize(
    ("counts", "level", "message"),
    [
        (
            FOUND,
            "info",
            "kept 60 of 69 rows: 4 bad, 2 exact duplicates, 1 near duplicates, 2 contaminated by arc 1, holdout 1",
        ),
        ({}, "info", f"kept 60 rows: {NOTHING}"),
        (
            {"safety_rows": 10, "kept_leaks": {"arc": 3}, "training_file_rows": 50},
            "warn",
            f"kept 50 of 50 rows: {NOTHING}; 10 rows of the safety mix added; {LEAKS}",
        ),
    ],
)
def test_a_ready_dataset_says_how_many_rows_were_kept_and_why_not_the_others(
    counts: dict[str, object], level: str, message: str
) -> None:
    assert sentence(ready(**counts)) == (level, f"dataset ready: {message}")


def test_a_refused_dataset_says_why() -> None:
    rejected = DatasetRejected(dataset_id="ds-1", tenant="acme", code="too_many_dropped", message="24 % are.")
    assert sentence(rejected) == ("error", "dataset refused (too_many_dropped): 24 % are.")
