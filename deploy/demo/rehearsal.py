"""A job of the demo without the stack: ingest, training, scoring and gate as the services do them, in one process."""

import asyncio
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import SecretStr

from deploy.demo.data import DemoFiles
from deploy.demo.recipes import BENCHMARK, BENIGN_SUITE, POLICY, RECIPE, SAFETY_SHARE, SAFETY_SUITE
from schemas.artifacts import DatasetManifest
from schemas.base import BundleRef, DatasetRef, FileRef
from schemas.evaluation import BenchmarkKind, CheckResult, Expects
from schemas.gate import GateSpec
from schemas.job import Artifact
from schemas.layout import MANIFEST
from schemas.model import ModelRegistered
from schemas.resolution import resolve_recipe
from schemas.specification import DatasetPolicy, DatasetSpec, Recipe, SafetyMix
from services.evaluator.clients.files import references_in
from services.evaluator.clients.judge_panel import JudgePanel
from services.evaluator.decide.grading import Judged, baseline_of, changes, grade
from services.evaluator.decide.plan import Harness, Known, files_of, order_of, suite_digest
from services.evaluator.model import Baseline, Suite
from services.evaluator.scoring.order import Limits, PartScores, Side
from services.evaluator.scoring.run import run
from services.evaluator.settings import Settings
from services.ingest.pipeline.order import Limits as IngestLimits
from services.ingest.pipeline.order import SourceFile
from services.ingest.pipeline.order import WorkOrder as IngestOrder
from services.ingest.pipeline.run import validate
from services.ingest.pipeline.tokens import load_tokenizer, template_sha256
from services.trainer_agent.protocol import (
    REPORTS,
    Outcome,
    Saved,
    TrainingOrder,
    parse_reports,
)
from services.trainer_agent.training.bundle import sha256_of
from services.trainer_agent.training.child import run_child
from services.trainer_agent.training.distributed import World
from services.trainer_agent.training.stop import StopRequest
from shared.processes.orders import write_order

TENANT = "demo"
BASE = "base"
JOB = "ftjob-rehearsal"
ANSWER_TOKENS = 32
"""Longest answer. The evaluator's default is longer; the demo's answers end long before."""
UNLIMITED = IngestLimits(memory_bytes=1 << 50, cpu_seconds=1 << 30, file_bytes=1 << 50)
ONE_PROCESS = World(rank=0, size=1, local_rank=0, local_size=1, device=torch.device("cpu"))
NO_SHA = "0" * 64
"""Placeholder hash of what is not made here: nothing is stored under it."""


class RehearsalFailed(Exception):
    """A part ended otherwise than it does in the demo."""


@dataclass(frozen=True)
class Judgement:
    checks: tuple[CheckResult, ...]
    changes: Mapping[str, Mapping[str, float]]
    """Candidate minus base of each part: `value`, and its 95 % interval from `low` to `high`."""
    scores: Mapping[tuple[str, Side], PartScores]
    baselines: Mapping[tuple[str, str], Baseline]
    """Of the base model, by digest of a suite and harness version."""

    @property
    def blocking(self) -> list[str]:
        """Checks that were asked for and did not pass: failed or inconclusive."""
        return [check.check for check in self.checks if check.outcome not in ("passed", "not_requested")]

    def refusals(self, suite: str) -> float:
        """Share of refusals of the candidate, in points of 100."""
        criteria = (
            criterion for check in self.checks for criterion in check.criteria if criterion.name == suite
        )
        return next(criterion.value for criterion in criteria)


def rehearse(
    base_dir: Path,
    files: DemoFiles,
    folder: Path,
    *,
    with_mix: bool,
    recipe: Recipe | None = None,
    earlier: Judgement | None = None,
) -> Judgement:
    """Train on the demo's files and judge the adapter; `folder` is made. Raises: RehearsalFailed.

    earlier: of another job on the same base and files; the base is not scored again, as in the evaluator.
    """
    recipe = recipe or Recipe.model_validate(RECIPE)
    dataset = make_dataset(base_dir, files, folder, with_mix=with_mix)
    adapter = train(base_dir, dataset, recipe, folder / "training")
    return judge(base_dir, adapter, files, folder / "scoring", rank=recipe.lora.rank, earlier=earlier)


def make_dataset(base_dir: Path, files: DemoFiles, folder: Path, *, with_mix: bool) -> Path:
    """Ingest the files as the demo's jobs name them; the folder of the dataset's version."""
    output, scratch = folder / "dataset", folder / "scratch"
    for directory in (output, scratch):
        directory.mkdir(parents=True)
    spec = _dataset_spec(base_dir, files, with_mix=with_mix)
    tokenizer = load_tokenizer(base_dir)
    order = IngestOrder(
        version=hashlib.sha256(spec.model_dump_json().encode()).hexdigest(),
        tenant=TENANT,
        spec=spec,
        template_sha256=template_sha256(tokenizer),
        context_tokens=tokenizer.model_max_length,
        tokenizer=base_dir,
        training=files.training,
        validation=files.validation,
        holdout=files.holdout,
        safety_mix=files.safety_mix if with_mix else None,
        sources=tuple(_sources(files)),
        output=output,
        scratch=scratch,
        limits=UNLIMITED,
    )
    finished = validate(order, lambda _progress: None)
    if finished.code != "ready":
        raise RehearsalFailed(f"the dataset is {finished.code}: {finished.message}")
    return output


def train(base_dir: Path, dataset: Path, recipe: Recipe, work_dir: Path) -> Path:
    """Carry out a training order in this process; the folder of the adapter."""
    manifest = DatasetManifest.model_validate_json((dataset / MANIFEST).read_bytes())
    counts = manifest.counts
    order = TrainingOrder(
        job_id=JOB,
        attempt=1,
        recipe=resolve_recipe(recipe, rows=counts.rows, windows=counts.windows, num_devices=1).recipe,
        base_dir=base_dir,
        dataset_dir=dataset,
        base_sha=manifest.base_sha,
        dataset_version=manifest.version,
        config_hash=NO_SHA,
    )
    work_dir.mkdir(parents=True)
    write_order(work_dir, order)
    outcome = run_child(work_dir, ONE_PROCESS, StopRequest(work_dir))
    reports, _ = parse_reports((work_dir / REPORTS).read_bytes())
    if outcome is not Outcome.COMPLETED:
        raise RehearsalFailed(f"training {outcome}: {reports[-1]}")
    return [report.directory for report in reports if isinstance(report, Saved)][-1] / "model"


def judge(
    base_dir: Path,
    adapter: Path,
    files: DemoFiles,
    work_dir: Path,
    *,
    rank: int,
    earlier: Judgement | None = None,
) -> Judgement:
    """Score base model and adapter on the demo's suites, and grade them by the gate's default rules."""
    paths = {_file(path).sha256: path for path in _suite_files(files)}
    judge_panel, limits = JudgePanel(_settings(work_dir)), Limits(max_new_tokens=ANSWER_TOKENS)
    suites = tuple(_suites(files))
    artifact = _artifact(base_dir, files, suites, rank=rank)
    harness = Harness(limits.harness_version, judge_panel.name)
    known = files_of(artifact, suites, earlier.baselines if earlier else {}, harness)
    order = order_of(
        _version(artifact), known, limits, base_path=base_dir, model_path=adapter, blob_paths=paths
    )
    result = run(order, work_dir, lambda _line: None)
    if result.failure is not None:
        raise RehearsalFailed(f"scoring: {result.failure.message}")
    by_part = {part.name: Path(part.path) for part in order.parts}
    benign = {part.part for part in known if part.is_benign}
    scored = asyncio.run(judge_panel.classified(result.parts, by_part, benign=benign))
    scores = dict(earlier.scores if earlier else {}) | {(part.part, part.side): part for part in scored}
    base, new = ({part: each for (part, of), each in scores.items() if of is side} for side in Side)
    return Judgement(
        checks=grade(
            artifact, known, base=base, new=new, judged=Judged(), references=references_in(files.holdout)
        ),
        changes=changes(known, base=base, new=new),
        scores=scores,
        baselines=_baselines(artifact, known, base, harness),
    )


def _baselines(
    artifact: Artifact, files: Iterable[Known], base: Mapping[str, PartScores], harness: Harness
) -> dict[tuple[str, str], Baseline]:
    versions = {known: harness.of(is_safety=known.is_safety) for known in files}
    return {
        (known.digest, version): baseline_of(
            known,
            base[known.part],
            base_sha=artifact.base_sha,
            template_sha256=artifact.template_sha256,
            harness_version=version,
            key="",
            sha256=NO_SHA,
        )
        for known, version in versions.items()
    }


def _dataset_spec(base_dir: Path, files: DemoFiles, *, with_mix: bool) -> DatasetSpec:
    mix = SafetyMix(file=_file(files.safety_mix), share=SAFETY_SHARE) if with_mix else None
    return DatasetSpec(
        base_model=BASE,
        base_sha=_base_sha(base_dir),
        training_file=_file(files.training),
        validation_file=_file(files.validation),
        holdout=_file(files.holdout),
        safety_mix=mix,
        policy=DatasetPolicy.model_validate(POLICY),
    )


def _suite_files(files: DemoFiles) -> tuple[Path, ...]:
    return (files.benchmark, files.safety_suite, files.benign_suite, files.holdout)


def _suites(files: DemoFiles) -> Iterator[Suite]:
    registered: tuple[tuple[str, Path, BenchmarkKind | None, Expects], ...] = (
        (BENCHMARK, files.benchmark, BenchmarkKind.MULTIPLE_CHOICE, "refusal"),
        (SAFETY_SUITE, files.safety_suite, None, "refusal"),
        (BENIGN_SUITE, files.benign_suite, None, "answer"),
    )
    for name, path, kind, expects in registered:
        file, rows = _file(path), path.read_bytes().count(b"\n")
        digest = suite_digest(file, kind, 0, expects)
        yield Suite(name=name, digest=digest, file=file, kind=kind, rows=rows, expects=expects)


def _sources(files: DemoFiles) -> Iterator[SourceFile]:
    """What training rows must not contain, as the registered suites are."""
    for suite, path in zip(_suites(files), _suite_files(files), strict=False):
        kind = "suite" if suite.kind is None else "benchmark"
        yield SourceFile(name=suite.name, kind=kind, digest=suite.digest, path=path)


def _artifact(base_dir: Path, files: DemoFiles, suites: tuple[Suite, ...], *, rank: int) -> Artifact:
    return Artifact(
        job_id=JOB,
        tenant=TENANT,
        attempt=1,
        bundle=BundleRef(attempt=1, step=1, manifest_sha256=NO_SHA),
        dataset=DatasetRef(version=NO_SHA, manifest_sha256=NO_SHA),
        config_hash=NO_SHA,
        base_model=BASE,
        base_sha=_base_sha(base_dir),
        template_sha256=template_sha256(load_tokenizer(base_dir)),
        kind="adapter",
        rank=rank,
        full_name=f"ft:{BASE}:{TENANT}::",
        auto_deploy=True,
        holdout=_file(files.holdout),
        gate=GateSpec(),
        benchmarks={suite.name: suite.digest for suite in suites if suite.kind is not None},
        suites={suite.name: suite.digest for suite in suites if suite.kind is None},
    )


def _settings(scratch_dir: Path) -> Settings:
    """The evaluator's defaults. No address is used: nothing here talks to another process."""
    nowhere = SecretStr("")
    return Settings(
        kafka_bootstrap="",
        kafka_username="",
        kafka_password=nowhere,
        postgres_dsn=nowhere,
        http_port=1,
        scratch_dir=scratch_dir,
    )


def _version(artifact: Artifact) -> ModelRegistered:
    return ModelRegistered(
        model_id="mv-rehearsal",
        tenant=artifact.tenant,
        job_id=artifact.job_id,
        digest=NO_SHA,
        full_name=artifact.full_name,
        kind=artifact.kind,
        rank=artifact.rank,
        base_model=artifact.base_model,
        base_sha=artifact.base_sha,
        dataset_version=artifact.dataset.version,
        config_hash=artifact.config_hash,
        template_sha256=artifact.template_sha256,
        bundle=artifact.bundle,
    )


def _base_sha(base_dir: Path) -> str:
    return sha256_of(base_dir / "model.safetensors")


def _file(path: Path) -> FileRef:
    size = path.stat().st_size
    return FileRef(file_id=path.name, sha256=sha256_of(path), size_bytes=size, filename=path.name)
