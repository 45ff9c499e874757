"""What has to be scored for a verdict, and what is known already."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from schemas.base import FileRef
from schemas.evaluation import BenchmarkKind, CheckName, Expects
from schemas.gate import HoldoutRule
from schemas.job import Artifact
from schemas.model import ModelRegistered
from schemas.specification import canonical_sha256
from services.evaluator.gates.checks import RULES_VERSION
from services.evaluator.model import Baseline, Suite
from services.evaluator.scoring.order import (
    AnyPart,
    BenchmarkPart,
    Candidate,
    HoldoutPart,
    Limits,
    SafetyPart,
    Side,
    WorkOrder,
)

HOLDOUT = "holdout"


class NotRegistered(Exception):
    """The artifact names a suite that this evaluator never registered."""


@dataclass(frozen=True)
class Known:
    """One file to score, with the base model's scores of it where they are known."""

    part: str
    """Name of the part in orders and results."""
    digest: str
    file: FileRef
    suite: Suite | None
    """Suite that the file is of; None for the holdout."""
    baseline: Baseline | None
    rule: HoldoutRule | None = None
    """Rule by which the holdout is scored; None for a suite."""
    is_judged: bool = False
    """Whether a judge reads the holdout's answers, which then must be whole."""
    engine: str = ""
    """The engine of serving that is asked for the answers first; empty where none is."""
    engine_baseline: Baseline | None = None
    """The base model's scores by answers of that engine."""

    def baseline_by(self, engine: str) -> Baseline | None:
        """Return the baseline to compare this engine's answers with, if any; empty: the scoring child."""
        if not engine:
            return self.baseline
        return self.engine_baseline if engine == self.engine else None

    @property
    def has_answers(self) -> bool:
        """Return whether models are asked to write."""
        if self.rule is not None:
            return self.is_judged or self.rule.metric != "perplexity"
        return self.is_safety

    @property
    def blobs(self) -> tuple[FileRef, ...]:
        """Return every file that is read to score this one."""
        examples = self.suite.examples if self.suite is not None else None
        return (self.file,) if examples is None else (self.file, examples)

    @property
    def name(self) -> str:
        return HOLDOUT if self.suite is None else self.suite.name

    @property
    def check(self) -> CheckName:
        if self.suite is None:
            return "holdout"
        if self.suite.kind is not None:
            return "benchmark"
        return "over_refusal" if self.is_benign else "safety"

    @property
    def is_safety(self) -> bool:
        return self.suite is not None and self.suite.kind is None

    @property
    def is_benign(self) -> bool:
        """Return whether the prompts are to be answered, not refused."""
        return self.suite is not None and self.suite.kind is None and self.suite.expects == "answer"


@dataclass(frozen=True)
class Harness:
    """How numbers are made; those of another harness are not compared with ours."""

    scoring: str
    classifier: str

    def of(self, *, is_safety: bool, engine: str = "") -> str:
        """Name the harness of one suite. `engine`: that of serving which answered; empty: the scoring child."""
        by = f", answers by {engine}" if engine else ""
        return f"{self.scoring}{by}, {self.classifier}" if is_safety else f"{self.scoring}{by}"

    def of_all(self, engines: Mapping[str, str]) -> str:
        """Name the harness of a whole evaluation. `engines`: those of serving that gave answers, by part."""
        by = [f"answers to {part} by {engine}" for part, engine in sorted(engines.items()) if engine]
        return ", ".join([self.of(is_safety=True), *by])


def suite_digest(
    file: FileRef,
    kind: BenchmarkKind | None,
    num_fewshot: int,
    expects: Expects = "refusal",
    margin_points: float | None = None,
    examples: FileRef | None = None,
) -> str:
    """Return the identity of a registered suite: its bytes, how they are asked, what is asked of them; no name."""
    safety_kind = "benign" if expects == "answer" else "safety"
    identity = {"file": file.sha256, "kind": kind or safety_kind, "num_fewshot": num_fewshot}
    margin = {} if margin_points is None else {"margin_points": margin_points}
    shots = {} if examples is None else {"examples": examples.sha256}
    return canonical_sha256(identity | margin | shots)


def holdout_digest(file: FileRef, rule: HoldoutRule, *, is_judged: bool) -> str:
    """Return the identity of a holdout as it is scored. Thresholds are no part of it."""
    identity = rule.model_dump(mode="json", include={"metric", "pattern", "max_new_tokens"})
    return canonical_sha256({"file": file.sha256, "is_judged": is_judged, **identity})


def files_of(
    artifact: Artifact,
    suites: Sequence[Suite],
    baselines: Mapping[tuple[str, str], Baseline],
    harness: Harness,
    *,
    engine: str = "",
) -> tuple[Known, ...]:
    """Return every file to score. Raises NotRegistered.

    baselines: by suite digest and harness version. engine: the one that is asked for answers first.
    """
    registered = {(suite.name, suite.digest): suite for suite in suites}
    asked = [("benchmark", name, digest) for name, digest in sorted(artifact.benchmarks.items())]
    asked += [("safety", name, digest) for name, digest in sorted(artifact.suites.items())]
    files = []
    for check, name, digest in asked:
        suite = registered.get((name, digest))
        if suite is None:
            raise NotRegistered(f"{check} {name!r} with digest {digest} is not registered here")
        baseline = baselines.get((digest, harness.of(is_safety=suite.kind is None)))
        files.append(Known(f"{check}:{name}", digest, suite.file, suite, baseline))
    if artifact.holdout is not None:
        rule, is_judged = artifact.gate.holdout, artifact.gate.judge is not None
        digest = holdout_digest(artifact.holdout, rule, is_judged=is_judged)
        baseline = baselines.get((digest, harness.of(is_safety=False)))
        files.append(Known(HOLDOUT, digest, artifact.holdout, None, baseline, rule, is_judged))
    return tuple(_by_engine(known, engine, baselines, harness) for known in files)


def _by_engine(
    known: Known, engine: str, baselines: Mapping[tuple[str, str], Baseline], harness: Harness
) -> Known:
    if not engine or not known.has_answers:
        return known
    baseline = baselines.get((known.digest, harness.of(is_safety=known.is_safety, engine=engine)))
    return replace(known, engine=engine, engine_baseline=baseline)


def engines_of(files: Iterable[Known]) -> dict[str, str]:
    """Return the engines of serving that are to be asked, by part."""
    return {known.part: known.engine for known in files if known.engine}


def order_of(
    version: ModelRegistered,
    files: Sequence[Known],
    limits: Limits,
    *,
    base_path: Path,
    model_path: Path,
    blob_paths: Mapping[str, Path],
    num_devices: int = 1,
) -> WorkOrder:
    """Return the order for the scoring child. `blob_paths` is by sha256."""
    return WorkOrder(
        **limits.model_dump(),
        base_path=str(base_path),
        template_sha256=version.template_sha256,
        candidate=Candidate(kind=version.kind, path=str(model_path), rank=version.rank),
        parts=tuple(_part(known, blob_paths) for known in files),
        num_devices=num_devices if num_devices > 1 else None,
    )


def result_key(
    artifact: Artifact,
    version: ModelRegistered,
    harness: Harness,
    required: Collection[str],
    *,
    engines: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return a key that is equal for the same evaluation. `engines`: those of serving that give answers, by part."""
    return canonical_sha256(
        {
            "digest": version.digest,
            "base_sha": version.base_sha,
            "template": version.template_sha256,
            "holdout": artifact.holdout.sha256 if artifact.holdout else None,
            "gate": artifact.gate.model_dump(mode="json"),
            "rules": RULES_VERSION,
            "benchmarks": artifact.benchmarks,
            "suites": artifact.suites,
            "kept_leaks": artifact.kept_leaks,
            "harness": harness.of_all(engines),
            "required": sorted(required),
        }
    )


def _part(known: Known, blob_paths: Mapping[str, Path]) -> AnyPart:
    path = blob_paths[known.file.sha256]
    common: dict[str, Any] = {
        "name": known.part,
        "path": str(path),
        "sides": _unknown_sides(known.baseline),
        "engine": known.engine,
        "engine_sides": _unknown_sides(known.engine_baseline) if known.engine else (),
    }
    if known.suite is None:
        assert known.rule is not None, "only the holdout is no suite, and it has a rule"
        return HoldoutPart(
            **common,
            metric=known.rule.metric,
            pattern=known.rule.pattern,
            max_new_tokens=known.rule.max_new_tokens,
            is_judged=known.is_judged,
        )
    if known.suite.kind is None:
        return SafetyPart(**common)
    return BenchmarkPart(
        **common,
        kind=known.suite.kind,
        num_fewshot=known.suite.num_fewshot,
        examples_path=str(blob_paths[known.suite.examples.sha256]) if known.suite.examples else None,
    )


def _unknown_sides(baseline: Baseline | None) -> tuple[Side, ...]:
    return (Side.CANDIDATE,) if baseline else (Side.BASE, Side.CANDIDATE)
