"""Who gives the answers of an evaluation, and that those of two engines are never compared with each other."""

from dataclasses import replace
from pathlib import Path

import pytest

from schemas.evaluation import BenchmarkKind
from schemas.gate import GateSpec, HoldoutRule
from services.evaluator.decide.engines import choose_engine
from services.evaluator.decide.grading import engines_of as engines_that_answered
from services.evaluator.decide.plan import (
    Harness,
    engines_of,
    files_of,
    holdout_digest,
    order_of,
    result_key,
)
from services.evaluator.model import Replica
from services.evaluator.scoring.order import Limits, PartScores, Side
from tests.unit.evaluator.evaluations import a_file, a_suite, a_version, an_artifact
from tests.unit.evaluator.test_plan import a_baseline

ON_CPU = Replica("serve-1-0", "one", "vllm 1, cpu", "cpu")
ON_GPU = Replica("serve-1-1", "two", "vllm 1, cuda", "cuda")
HARNESS = Harness("scoring 1", "phrases 1")
CHOICES, SAFETY = a_suite("mmlu"), a_suite("refusals", None)
ARTIFACT = an_artifact(benchmarks=(CHOICES,), suites=(SAFETY,), holdout=a_file("holdout"))
VERSION = a_version(ARTIFACT)
ENGINE = ON_GPU.engine
BOTH, NEW = (Side.BASE, Side.CANDIDATE), (Side.CANDIDATE,)


@pytest.mark.parametrize(
    ("answers_by", "ready", "chosen"),
    [
        ("auto", [], ""),
        ("auto", [ON_CPU], ""),
        ("auto", [ON_CPU, ON_GPU], ENGINE),
        ("auto", [replace(ON_GPU, engine="")], ""),
        ("replica", [ON_CPU], ON_CPU.engine),
        ("replica", [], ""),
        ("self", [ON_CPU, ON_GPU], ""),
    ],
)
def test_a_replica_is_asked_where_the_operator_wants_it(answers_by, ready, chosen):
    assert choose_engine(answers_by, VERSION, ready) == chosen


def test_a_full_model_is_never_beside_its_base():
    assert choose_engine("replica", VERSION.model_copy(update={"kind": "full"}), [ON_GPU]) == ""


def known(engine=ENGINE, baselines=None, artifact=ARTIFACT):
    return files_of(artifact, (CHOICES, SAFETY), baselines or {}, HARNESS, engine=engine)


def parts(files):
    order = order_of(
        VERSION,
        files,
        Limits(),
        base_path=Path("/base"),
        model_path=Path("/model"),
        blob_paths={each.file.sha256: Path("/blob") for each in files},
    )
    return {part.name: (part.engine, part.engine_sides, part.sides) for part in order.parts}


def test_what_is_written_is_asked_of_the_engine_and_nothing_else():
    assert parts(known()) == {
        "benchmark:mmlu": ("", (), BOTH),
        "safety:refusals": (ENGINE, BOTH, BOTH),
        "holdout": (ENGINE, BOTH, BOTH),
    }
    assert all(part == ("", (), BOTH) for part in parts(known(engine="")).values())


@pytest.mark.parametrize(("judged", "asked"), [(False, ""), (True, ENGINE)])
def test_perplexity_is_written_for_a_judge_alone(judged, asked):
    judge = {"url": "http://judge/v1", "model": "j"} if judged else None
    gate = GateSpec.model_validate({"holdout": HoldoutRule(metric="perplexity"), "judge": judge})
    (holdout,) = (each for each in known(artifact=ARTIFACT.model_copy(update={"gate": gate})) if each.rule)
    assert holdout.engine == asked


def test_each_engine_has_its_own_baselines():
    by_safety = HARNESS.of(is_safety=True, engine=ENGINE)
    by_child = {(SAFETY.digest, HARNESS.of(is_safety=True)): a_baseline(SAFETY.digest)}
    by_engine = {(SAFETY.digest, by_safety): a_baseline(SAFETY.digest)}
    assert parts(known(baselines=by_child))["safety:refusals"] == (ENGINE, BOTH, NEW)
    assert parts(known(baselines=by_engine))["safety:refusals"] == (ENGINE, NEW, BOTH)
    assert parts(known(baselines=by_engine | by_child))["safety:refusals"] == (ENGINE, NEW, NEW)
    assert parts(known(engine="", baselines=by_engine))["safety:refusals"] == ("", (), BOTH)


def test_a_baseline_is_that_of_the_engine_that_answered():
    digest = holdout_digest(a_file("holdout"), HoldoutRule(), is_judged=False)
    one, other = a_baseline(digest), a_baseline(digest).model_copy(update={"key": "evals/baselines/y.json"})
    baselines = {(digest, "scoring 1"): one, (digest, f"scoring 1, answers by {ENGINE}"): other}
    (holdout,) = (each for each in known(baselines=baselines) if each.rule)
    assert (holdout.baseline_by(""), holdout.baseline_by(ENGINE)) == (one, other)
    assert holdout.baseline_by("vllm 2, cuda") is None


def test_numbers_without_answers_are_the_same_by_any_engine():
    assert HARNESS.of(is_safety=False) == "scoring 1"
    assert HARNESS.of_all({}) == HARNESS.of(is_safety=True) == "scoring 1, phrases 1"


def test_a_verdict_by_other_engines_is_another():
    def key(engines):
        return result_key(ARTIFACT, VERSION, HARNESS, ("safety",), engines=engines)

    asked = engines_of(known())
    assert asked == {"safety:refusals": ENGINE, "holdout": ENGINE}
    keys = [key(asked), key({}), key({"holdout": ENGINE}), key(dict.fromkeys(asked, "vllm 2, cuda"))]
    assert len(set(keys)) == len(keys)
    assert key({}) == result_key(ARTIFACT, VERSION, HARNESS, ("safety",))


def scores(part: str, side: Side, engine: str) -> PartScores:
    return PartScores(part=part, side=side, expected=0, items=(), seconds=1.0, engine=engine)


def test_both_sides_of_a_part_are_of_one_engine():
    new = {part: scores(part, Side.CANDIDATE, engine) for part, engine in (("a", ENGINE), ("b", ""))}
    base = {part: scores(part, Side.BASE, engine) for part, engine in (("a", ENGINE), ("b", ""))}
    assert engines_that_answered(base, new) == {"a": ENGINE}
    with pytest.raises(AssertionError, match="a: base by ''"):
        engines_that_answered({**base, "a": scores("a", Side.BASE, "")}, new)


def test_the_kinds_of_benchmarks_are_not_written():
    assert {each.has_answers for each in known() if each.suite and each.suite.kind} == {False}
    assert CHOICES.kind is BenchmarkKind.MULTIPLE_CHOICE
