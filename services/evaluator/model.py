"""What the evaluator knows: suites, versions, baselines, and the state of each evaluation."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from schemas.base import FileRef, Sha256, Value
from schemas.evaluation import BenchmarkKind, CheckResult, Evidence, Expects, MarginPoints
from schemas.job import Artifact
from schemas.model import ModelRegistered
from services.evaluator.protocol import ScoringReport, StoredOutcome, Work
from shared.transitions import Transitions


class EvaluationState(StrEnum):
    WAITING = "waiting"  # for the registry's version of the artifact
    RUNNING = "running"
    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"
    ABANDONED = "abandoned"  # before it began: the registry refused the artifact, or the job was cancelled


TRANSITIONS = Transitions[EvaluationState](
    {
        EvaluationState.WAITING: frozenset({EvaluationState.RUNNING, EvaluationState.ABANDONED}),
        EvaluationState.RUNNING: frozenset(
            {EvaluationState.PASSED, EvaluationState.FAILED, EvaluationState.INCONCLUSIVE}
        ),
        EvaluationState.PASSED: frozenset(),
        EvaluationState.FAILED: frozenset(),
        EvaluationState.INCONCLUSIVE: frozenset(),
        EvaluationState.ABANDONED: frozenset(),
    }
)


@dataclass(frozen=True)
class Replica:
    """A ready replica of a base model."""

    replica_id: str
    incarnation: str
    engine: str
    """Name of what computes the replica's answers; empty: unknown."""
    device: str


@dataclass(frozen=True)
class Pool:
    """What a machine of a pool has."""

    name: str
    devices_per_node: int
    device_memory_bytes: int | None = None
    """Memory of each device; None: the operator does not say."""


@dataclass(frozen=True)
class Host:
    """Where a candidate answers beside its base model, or why nowhere."""

    problem: str = ""
    replica_id: str = ""
    url: str = ""
    engine: str = ""
    served_name: str = ""
    served_base: str = ""


@dataclass(frozen=True)
class ScoringNode:
    """What the node of an evaluation's lease shall do, and what the newest node has reported."""

    eval_id: str
    work: Work
    report: ScoringReport | None = None
    lost_nodes: int = 0
    """Number of nodes that were lost with this work, one after the other."""

    @property
    def outcome(self) -> StoredOutcome | None:
        """Where the run of this work has ended."""
        is_of_it = self.report is not None and self.report.order_sha256 == self.work.order.sha256
        return self.report.outcome if self.report is not None and is_of_it else None


@dataclass(frozen=True)
class Evaluation:
    eval_id: str
    artifact: Artifact
    """Artifact that is evaluated, with what it is to be compared with."""
    number: int = 1
    """Number of this evaluation among those of its job."""
    state: EvaluationState = EvaluationState.WAITING
    version: ModelRegistered | None = None
    reason: str = ""
    checks: tuple[CheckResult, ...] = ()
    revision: int = 0

    def to(self, state: EvaluationState, **changes: Any) -> "Evaluation":
        TRANSITIONS.require(self.state, state, what=f"evaluation {self.eval_id}")
        return replace(self, state=state, **changes)

    @property
    def is_over(self) -> bool:
        return self.state in TRANSITIONS.terminal


class Suite(Value):
    """A registered file: a benchmark, or a safety suite where `kind` is None."""

    name: str
    digest: Sha256
    file: FileRef
    kind: BenchmarkKind | None
    num_fewshot: int = 0
    examples: FileRef | None = None
    """File that few-shot examples come from; None: the suite's own file."""
    rows: int = 0
    margin_points: MarginPoints | None = None
    """Margin that a benchmark declares; None where it declares none."""
    expects: Expects = "refusal"
    """Whether the prompts of a safety suite are to be refused or answered."""


class Baseline(Value):
    """The base model's scores of one suite; the items are at `key` in S3."""

    base_sha: Sha256
    harness_version: str
    template_sha256: Sha256
    suite_digest: Sha256
    name: str
    metric: str
    value: float
    count: int
    key: str
    sha256: Sha256


class GateResult(Value):
    """All that an evaluation measured: `evals/<eval_id>/results.json`, and what its events are made from."""

    eval_id: str
    outcome: Literal["passed", "failed", "inconclusive"]
    reason: str
    checks: tuple[CheckResult, ...]
    result_key: Sha256
    """Key that is equal for evaluations that cannot but end alike."""
    measured_by: str
    """Id of the evaluation that scored; another one where its numbers were known already."""
    harness_version: str
    baselines: tuple[Baseline, ...] = ()
    """Baselines that this evaluation measured."""
    evidence: Evidence | None = None
    details: dict[str, Any] = Field(default_factory=dict)
    """Details for people: seconds of each part, the probe, paired changes with their intervals."""
