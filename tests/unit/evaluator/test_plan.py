from pathlib import Path

import pytest

from schemas.evaluation import BenchmarkKind
from schemas.specification import BenchmarkRule, GateSpec
from services.evaluator.decide.plan import (
    Harness,
    NotRegistered,
    files_of,
    order_of,
    result_key,
    suite_digest,
)
from services.evaluator.model import Baseline
from services.evaluator.scoring.order import BenchmarkPart, HoldoutPart, Limits, SafetyPart, Side
from tests.builders import a_sha
from tests.unit.evaluator.evaluations import a_file, a_suite, a_version, an_artefact

HARNESS = Harness("scoring 1", "phrases 1")
MMLU, SAFETY = a_suite("mmlu"), a_suite("refusals", None)
ARTEFACT = an_artefact(benchmarks=(MMLU,), suites=(SAFETY,), holdout=a_file("holdout"))


def a_baseline(digest: str) -> Baseline:
    return Baseline(
        base_sha=a_sha("tiny"),
        harness_version="scoring 1",
        template_sha256=a_sha("template"),
        suite_digest=digest,
        name="x",
        metric="accuracy_points",
        value=50.0,
        count=100,
        key="evals/baselines/x.json",
        sha256=a_sha("x"),
    )


def order(baselines=None):
    files = files_of(ARTEFACT, (MMLU, SAFETY), baselines or {}, HARNESS)
    paths = {known.file.sha256: Path(f"/blobs/{known.part}") for known in files}
    return order_of(
        a_version(ARTEFACT),
        files,
        Limits(),
        base_path=Path("/base"),
        model_path=Path("/model"),
        blob_paths=paths,
    )


def test_an_order_has_every_file_on_both_sides():
    assert [(type(part), part.name, part.sides) for part in order().parts] == [
        (BenchmarkPart, "benchmark:mmlu", (Side.BASE, Side.CANDIDATE)),
        (SafetyPart, "safety:refusals", (Side.BASE, Side.CANDIDATE)),
        (HoldoutPart, "holdout", (Side.BASE, Side.CANDIDATE)),
    ]


def test_a_known_baseline_is_not_scored_again():
    sides = {
        part.name: part.sides for part in order({(MMLU.digest, "scoring 1"): a_baseline(MMLU.digest)}).parts
    }
    assert sides["benchmark:mmlu"] == (Side.CANDIDATE,)
    assert sides["holdout"] == (Side.BASE, Side.CANDIDATE)


def test_a_baseline_of_another_harness_or_classifier_does_not_count():
    other = {
        (MMLU.digest, "scoring 0"): a_baseline(MMLU.digest),
        (SAFETY.digest, "scoring 1"): a_baseline(SAFETY.digest),
    }
    assert all(part.sides == (Side.BASE, Side.CANDIDATE) for part in order(other).parts)
    known = {(SAFETY.digest, "scoring 1, phrases 1"): a_baseline(SAFETY.digest)}
    assert {part.name: part.sides for part in order(known).parts}["safety:refusals"] == (Side.CANDIDATE,)


@pytest.mark.parametrize(
    "registered", [(), (MMLU,), (SAFETY,), (a_suite("mmlu", BenchmarkKind.TEXT), SAFETY)]
)
def test_a_suite_that_was_never_registered_is_an_error(registered):
    with pytest.raises(NotRegistered):
        files_of(ARTEFACT, registered, {}, HARNESS)


def test_a_suite_is_its_bytes_and_how_they_are_asked():
    file = a_file("x")
    digests = {
        suite_digest(file, BenchmarkKind.MULTIPLE_CHOICE, 0),
        suite_digest(file, BenchmarkKind.MULTIPLE_CHOICE, 5),
        suite_digest(file, BenchmarkKind.TEXT, 0),
        suite_digest(file, None, 0),
        suite_digest(file, None, 0, "answer"),
        suite_digest(file, BenchmarkKind.TEXT, 0, margin_points=3.1),
        suite_digest(a_file("y"), None, 0),
    }
    assert len(digests) == 7
    renamed = file.model_copy(update={"file_id": "file-other", "filename": "other.jsonl"})
    assert suite_digest(renamed, None, 0) in digests


def test_results_are_shared_only_by_what_cannot_but_end_alike():
    base = (ARTEFACT, a_version(ARTEFACT), HARNESS, ("safety",))
    stricter = GateSpec(benchmarks=BenchmarkRule(margin_points=1.0))
    keys = {
        result_key(*base),
        result_key(ARTEFACT.model_copy(update={"holdout": None}), *base[1:]),
        result_key(ARTEFACT.model_copy(update={"gate": stricter}), *base[1:]),
        result_key(ARTEFACT.model_copy(update={"benchmarks": {}}), *base[1:]),
        result_key(ARTEFACT.model_copy(update={"suites": {}}), *base[1:]),
        result_key(ARTEFACT.model_copy(update={"kept_leaks": {"mmlu": 1}}), *base[1:]),
        result_key(ARTEFACT, a_version(ARTEFACT, digest="other"), *base[2:]),
        result_key(*base[:2], Harness("scoring 2", "phrases 1"), ("safety",)),
        result_key(*base[:2], Harness("scoring 1", "judge"), ("safety",)),
        result_key(*base[:3], ()),
    }
    assert len(keys) == 10
    another_job = ARTEFACT.model_copy(update={"job_id": "ftjob-2", "tenant": "other"})
    assert result_key(another_job, *base[1:]) == result_key(*base)
