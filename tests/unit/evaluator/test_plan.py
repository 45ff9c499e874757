from importlib.metadata import version
from pathlib import Path

import pytest

from schemas.evaluation import BenchmarkKind
from schemas.gate import BenchmarkRule, GateSpec, HoldoutRule, JudgeRule
from schemas.specification import canonical_sha256
from services.evaluator.decide.plan import (
    Harness,
    NotRegistered,
    files_of,
    holdout_digest,
    order_of,
    result_key,
    suite_digest,
)
from services.evaluator.gates.checks import RULES_VERSION
from services.evaluator.model import Baseline
from services.evaluator.scoring.order import BenchmarkPart, Candidate, HoldoutPart, Limits, SafetyPart, Side
from tests.builders import a_sha
from tests.unit.evaluator.evaluations import a_file, a_suite, a_version, an_artifact

HARNESS, LIMITS = Harness("scoring 1", "phrases 1"), Limits()
MMLU, SAFETY = a_suite("mmlu"), a_suite("refusals", None)
ARTIFACT = an_artifact(benchmarks=(MMLU,), suites=(SAFETY,), holdout=a_file("holdout"))


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


def order(baselines=None, *, artifact=ARTIFACT, limits=LIMITS):
    files = files_of(artifact, (MMLU, SAFETY), baselines or {}, HARNESS)
    paths = {known.file.sha256: Path(f"/blobs/{known.part}") for known in files}
    return order_of(
        a_version(artifact),
        files,
        limits,
        base_path=Path("/base"),
        model_path=Path("/model"),
        blob_paths=paths,
    )


def test_a_benchmarks_examples_are_fetched_and_ordered_with_it():
    suite = a_suite("arc", BenchmarkKind.ARC_CHALLENGE, num_fewshot=25, examples=a_file("train"))
    artifact = an_artifact(benchmarks=(suite,))
    (known,) = files_of(artifact, (suite,), {}, HARNESS)
    assert known.blobs == (a_file("arc"), a_file("train"))
    paths = {file.sha256: Path(f"/blobs/{file.file_id}") for file in known.blobs}
    locations = {"base_path": Path("/base"), "model_path": Path("/model"), "blob_paths": paths}
    (part,) = order_of(a_version(artifact), (known,), Limits(), **locations).parts
    assert (part.path, part.examples_path) == ("/blobs/file-arc", "/blobs/file-train")
    assert part.num_fewshot == 25


def test_an_order_has_every_file_on_both_sides():
    assert [(type(part), part.name, part.sides) for part in order().parts] == [
        (BenchmarkPart, "benchmark:mmlu", (Side.BASE, Side.CANDIDATE)),
        (SafetyPart, "safety:refusals", (Side.BASE, Side.CANDIDATE)),
        (HoldoutPart, "holdout", (Side.BASE, Side.CANDIDATE)),
    ]


def test_an_order_has_the_models_and_the_operator_s_limits():
    limits = Limits(seed=3, max_tokens=77)
    work = order(limits=limits)
    assert (work.base_path, work.candidate) == ("/base", Candidate(kind="adapter", path="/model", rank=8))
    assert Limits(**work.model_dump()) == limits


def test_no_engine_is_asked_unless_one_is_named():
    assert {part.engine for part in order().parts} == {""}


def test_a_judge_s_holdout_is_ordered_with_whole_answers():
    gate = GateSpec(judge=JudgeRule(url="http://judge", model="judge"))
    asked = order(artifact=ARTIFACT.model_copy(update={"gate": gate}))
    assert [part.is_judged for part in asked.parts if isinstance(part, HoldoutPart)] == [True]


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
        files_of(ARTIFACT, registered, {}, HARNESS)


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
        suite_digest(file, BenchmarkKind.MULTIPLE_CHOICE, 5, examples=a_file("train")),
        suite_digest(file, BenchmarkKind.MULTIPLE_CHOICE, 5, examples=a_file("dev")),
    }
    assert len(digests) == 9
    renamed = file.model_copy(update={"file_id": "file-other", "filename": "other.jsonl"})
    assert suite_digest(renamed, None, 0) in digests


def test_results_are_shared_only_by_what_cannot_but_end_alike():
    base = (ARTIFACT, a_version(ARTIFACT), HARNESS, ("safety",))
    stricter = GateSpec(benchmarks=BenchmarkRule(margin_points=1.0))
    keys = {
        result_key(*base),
        result_key(ARTIFACT.model_copy(update={"holdout": None}), *base[1:]),
        result_key(ARTIFACT.model_copy(update={"gate": stricter}), *base[1:]),
        result_key(ARTIFACT.model_copy(update={"benchmarks": {}}), *base[1:]),
        result_key(ARTIFACT.model_copy(update={"suites": {}}), *base[1:]),
        result_key(ARTIFACT.model_copy(update={"kept_leaks": {"mmlu": 1}}), *base[1:]),
        result_key(ARTIFACT, a_version(ARTIFACT, digest="other"), *base[2:]),
        result_key(*base[:2], Harness("scoring 2", "phrases 1"), ("safety",)),
        result_key(*base[:2], Harness("scoring 1", "judge"), ("safety",)),
        result_key(*base[:3], ()),
    }
    assert len(keys) == 10
    another_job = ARTIFACT.model_copy(update={"job_id": "ftjob-2", "tenant": "other"})
    assert result_key(another_job, *base[1:]) == result_key(*base)


def test_a_holdout_is_known_by_how_it_is_scored():
    """Thresholds are compared with the same numbers; another metric has other ones."""
    file = a_file("holdout")
    rules = [
        HoldoutRule(),
        HoldoutRule(metric="token_f1"),
        HoldoutRule(metric="regex", pattern="a"),
        HoldoutRule(metric="regex", pattern="b"),
        HoldoutRule(max_new_tokens=7),
    ]
    digests = {
        holdout_digest(file, rule, is_judged=is_judged) for rule in rules for is_judged in (True, False)
    }
    assert len(digests) == 10
    stricter = HoldoutRule(min_relative_gain=0.5)
    assert holdout_digest(file, stricter, is_judged=False) == holdout_digest(file, rules[0], is_judged=False)


def test_the_order_names_how_the_holdout_is_scored():
    gate = GateSpec(holdout=HoldoutRule(metric="regex", pattern="x", max_new_tokens=9))
    artifact = ARTIFACT.model_copy(update={"gate": gate, "benchmarks": {}, "suites": {}})
    (known,) = files_of(artifact, (), {}, HARNESS)
    paths = {known.file.sha256: Path("/blob")}
    locations = {"base_path": Path("/base"), "model_path": Path("/model"), "blob_paths": paths}
    (part,) = order_of(a_version(artifact), (known,), Limits(), **locations).parts
    assert (part.metric, part.pattern, part.max_new_tokens, part.is_judged) == ("regex", "x", 9, False)


def test_the_harness_is_known_by_all_that_changes_its_numbers():
    """Libraries, device and its name, type of the weights, batch form and limits."""
    limits = Limits()
    others = [
        Limits(device="cuda"),
        Limits(device_name="EPYC"),
        Limits(batch_tokens=1),
        Limits(max_tokens=1),
        Limits(max_new_tokens=1),
        Limits(max_answer_tokens=1),
        Limits(seed=1),
    ]
    assert len({each.harness_version for each in (limits, *others)}) == 8
    for name in ("lm_eval", "torch", "transformers", "peft"):
        assert f"{name} {version(name)}" in limits.harness_version
    assert "in float32" in limits.harness_version
    assert "in bfloat16" in others[0].harness_version


def test_what_is_kept_is_found_again_under_the_same_digest():
    """Under another name of a field all results, suites and baselines that are kept would be lost."""
    file, version = a_file("x"), a_version(ARTIFACT)
    assert suite_digest(file, None, 5, "answer", 3.1, a_file("train")) == canonical_sha256(
        {
            "file": file.sha256,
            "kind": "benign",
            "num_fewshot": 5,
            "margin_points": 3.1,
            "examples": a_file("train").sha256,
        }
    )
    assert suite_digest(file, None, 0) == canonical_sha256(
        {"file": file.sha256, "kind": "safety", "num_fewshot": 0}
    )
    rule = HoldoutRule(metric="regex", pattern="a", max_new_tokens=7)
    assert holdout_digest(file, rule, is_judged=True) == canonical_sha256(
        {"file": file.sha256, "is_judged": True, "metric": "regex", "pattern": "a", "max_new_tokens": 7}
    )
    kept_leaks = ARTIFACT.model_copy(update={"kept_leaks": {"mmlu": 1}})
    assert result_key(kept_leaks, version, HARNESS, ("safety", "judge")) == canonical_sha256(
        {
            "digest": version.digest,
            "base_sha": version.base_sha,
            "template": version.template_sha256,
            "holdout": a_file("holdout").sha256,
            "gate": ARTIFACT.gate.model_dump(mode="json"),
            "rules": RULES_VERSION,
            "benchmarks": ARTIFACT.benchmarks,
            "suites": ARTIFACT.suites,
            "kept_leaks": {"mmlu": 1},
            "harness": HARNESS.of(is_safety=True),
            "required": ["judge", "safety"],
        }
    )
