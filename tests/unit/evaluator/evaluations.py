"""Artefacts, versions and scores for tests of the evaluator's decisions."""

from schemas.base import BundleRef, DatasetRef, FileRef
from schemas.evaluation import BenchmarkKind, Expects
from schemas.job import Artefact
from schemas.model import ModelRegistered
from schemas.specification import GateSpec, HoldoutRule
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


def an_artefact(
    *,
    benchmarks: tuple[Suite, ...] = (),
    suites: tuple[Suite, ...] = (),
    holdout: FileRef | None = None,
    gate: GateSpec | None = None,
    bundle: BundleRef | None = None,
    dataset: DatasetRef | None = None,
) -> Artefact:
    return Artefact(
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


def a_version(artefact: Artefact | None = None, *, digest: str = "digest") -> ModelRegistered:
    artefact = artefact or an_artefact()
    return ModelRegistered(
        model_id=f"model-{digest}",
        tenant=artefact.tenant,
        job_id=artefact.job_id,
        digest=a_sha(digest),
        full_name=artefact.full_name + "abc",
        kind=artefact.kind,
        rank=artefact.rank,
        base_model=artefact.base_model,
        base_sha=artefact.base_sha,
        dataset_version=artefact.dataset.version,
        config_hash=artefact.config_hash,
        template_sha256=artefact.template_sha256,
        bundle=artefact.bundle,
    )


def an_evaluation(
    state: EvaluationState = EvaluationState.RUNNING, artefact: Artefact | None = None
) -> Evaluation:
    artefact = artefact or an_artefact(benchmarks=(a_suite(),))
    version = None if state is EvaluationState.WAITING else a_version(artefact)
    return Evaluation(eval_id="eval-1", artefact=artefact, state=state, version=version)


def a_result(outcome: str = "passed", stages=()) -> GateResult:
    return GateResult(
        eval_id="eval-1",
        outcome=outcome,
        reason="" if outcome == "passed" else "because",
        stages=tuple(stages),
        result_key=a_sha("key"),
        measured_by="eval-1",
        harness_version="harness",
    )


def known(suite: Suite | None = None, *, holdout: FileRef | None = None) -> Known:
    if suite is None:
        file = holdout or a_file("holdout")
        return Known("holdout", file.sha256, file, None, None, HoldoutRule())
    stage = "safety" if suite.kind is None else "benchmark"
    return Known(f"{stage}:{suite.name}", suite.digest, suite.file, suite, None)


def scores(
    part: str, side: Side, hits: int, count: int, *, name: str = "hits", **numbers: float
) -> PartScores:
    items = tuple(
        ItemScore(key=f"{n:04d}", answer=f"answer {n}", numbers={name: float(n < hits), **numbers})
        for n in range(count)
    )
    return PartScores(part=part, side=side, expected=count, items=items, seconds=1.0)
