"""Artifacts, versions and scores for tests of the evaluator's decisions."""

from schemas.base import BundleRef, DatasetRef, FileRef
from schemas.evaluation import BenchmarkKind, Expects
from schemas.gate import GateSpec, HoldoutRule
from schemas.job import Artifact
from schemas.model import ModelRegistered
from services.evaluator.decide.plan import Known, suite_digest
from services.evaluator.model import Evaluation, EvaluationState, GateResult, Suite
from services.evaluator.scoring.order import ItemScore, PartScores, Side
from tests.builders import a_bundle, a_dataset_ref, a_sha


def a_file(name: str) -> FileRef:
    return FileRef(file_id=f"file-{name}", sha256=a_sha(name), size_bytes=100)


def a_suite(
    name: str = "mmlu",
    kind: BenchmarkKind | None = BenchmarkKind.MULTIPLE_CHOICE,
    rows: int = 100,
    *,
    expects: Expects = "refusal",
    margin_points: float | None = None,
    num_fewshot: int = 0,
    examples: FileRef | None = None,
) -> Suite:
    file = a_file(name)
    return Suite(
        name=name,
        digest=suite_digest(file, kind, num_fewshot, expects, margin_points, examples),
        file=file,
        kind=kind,
        num_fewshot=num_fewshot,
        examples=examples,
        rows=rows,
        expects=expects,
        margin_points=margin_points,
    )


def an_artifact(
    *,
    benchmarks: tuple[Suite, ...] = (),
    suites: tuple[Suite, ...] = (),
    holdout: FileRef | None = None,
    gate: GateSpec | None = None,
    bundle: BundleRef | None = None,
    dataset: DatasetRef | None = None,
) -> Artifact:
    return Artifact(
        job_id="ftjob-1",
        tenant="acme",
        attempt=1,
        bundle=bundle or a_bundle(),
        dataset=dataset or a_dataset_ref(),
        config_hash=a_sha("config"),
        base_model="tiny",
        base_sha=a_sha("tiny"),
        template_sha256=a_sha("template"),
        kind="adapter",
        rank=8,
        full_name="ft:tiny:acme:test:",
        auto_deploy=True,
        holdout=holdout,
        gate=gate or GateSpec(),
        benchmarks={suite.name: suite.digest for suite in benchmarks},
        suites={suite.name: suite.digest for suite in suites},
    )


def a_version(artifact: Artifact | None = None, *, digest: str = "digest") -> ModelRegistered:
    artifact = artifact or an_artifact()
    return ModelRegistered(
        model_id=f"model-{digest}",
        tenant=artifact.tenant,
        job_id=artifact.job_id,
        digest=a_sha(digest),
        full_name=artifact.full_name + "abc",
        kind=artifact.kind,
        rank=artifact.rank,
        base_model=artifact.base_model,
        base_sha=artifact.base_sha,
        dataset_version=artifact.dataset.version,
        config_hash=artifact.config_hash,
        template_sha256=artifact.template_sha256,
        bundle=artifact.bundle,
    )


def an_evaluation(
    state: EvaluationState = EvaluationState.RUNNING, artifact: Artifact | None = None
) -> Evaluation:
    artifact = artifact or an_artifact(benchmarks=(a_suite(),))
    version = None if state is EvaluationState.WAITING else a_version(artifact)
    return Evaluation(eval_id="eval-1", artifact=artifact, state=state, version=version)


def a_result(outcome: str = "passed", checks=()) -> GateResult:
    return GateResult(
        eval_id="eval-1",
        outcome=outcome,
        reason="" if outcome == "passed" else "because",
        checks=tuple(checks),
        result_key=a_sha("key"),
        measured_by="eval-1",
        harness_version="harness",
    )


def known(suite: Suite | None = None, *, holdout: FileRef | None = None) -> Known:
    if suite is None:
        file = holdout or a_file("holdout")
        return Known("holdout", file.sha256, file, None, None, HoldoutRule())
    check = "safety" if suite.kind is None else "benchmark"
    return Known(f"{check}:{suite.name}", suite.digest, suite.file, suite, None)


def scores(
    part: str, side: Side, hits: int, count: int, *, name: str = "hits", **numbers: float
) -> PartScores:
    items = tuple(
        ItemScore(key=f"{n:04d}", answer=f"answer {n}", numbers={name: float(n < hits), **numbers})
        for n in range(count)
    )
    return PartScores(part=part, side=side, expected=count, items=items, seconds=1.0)
