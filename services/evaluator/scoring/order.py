"""What the service asks of the scoring child and what the child answers: files in the work directory."""

from enum import StrEnum
from importlib.metadata import version
from typing import Literal

from pydantic import Field

from schemas.base import Count, Sha256, Value
from schemas.evaluation import BenchmarkKind

ORDER_FILE = "order.json"
SCORES_FILE = "scores.json"
SCORING_VERSION = 3
"""Raised when prompts, normalisation or metrics change: then old baselines say nothing about new scores."""


Device = Literal["cpu", "cuda"]


class Side(StrEnum):
    BASE = "base"
    CANDIDATE = "candidate"


class Candidate(Value):
    kind: Literal["adapter", "full"]
    path: str
    rank: Count
    """Rank that the lineage names; 0 for a full model."""


class Part(Value):
    """One file of rows to score, on the sides that are not known yet."""

    name: str
    """`benchmark:<name>`, `safety:<name>` or `holdout`."""
    path: str
    sides: tuple[Side, ...]


class BenchmarkPart(Part):
    task: Literal["benchmark"] = "benchmark"
    kind: BenchmarkKind
    num_fewshot: Count = 0


class HoldoutPart(Part):
    task: Literal["holdout"] = "holdout"


class SafetyPart(Part):
    task: Literal["safety"] = "safety"


AnyPart = BenchmarkPart | HoldoutPart | SafetyPart


class Limits(Value):
    """What the operator sets for every order."""

    seed: int = 0
    batch_size: Count = 16
    max_tokens: Count = 4096
    """Longest sequence; a model with a shorter context has that."""
    max_new_tokens: Count = 256
    max_rank: Count = 512
    device: Device = "cpu"

    @property
    def harness_version(self) -> str:
        """What the numbers depend on besides model and rows; only equal ones are compared."""
        limits = f"{self.max_tokens}+{self.max_new_tokens} tokens, seed {self.seed}"
        return f"lm-eval {version('lm_eval')}, scoring {SCORING_VERSION}, {self.device}, {limits}"


class Order(Limits):
    base_path: str
    template_sha256: Sha256
    candidate: Candidate
    parts: tuple[AnyPart, ...]


class ItemScore(Value):
    """One row of a file. `numbers`: `hits`, `tokens`, `nats`, `bytes`, whichever the task has."""

    key: str
    """Line and start of the sha256 of what the model was given."""
    answer: str | None = None
    is_cut: bool = False
    """The model had more to say than it was allowed to."""
    category: str = ""
    """Of a prompt whose suite has categories."""
    numbers: dict[str, float] = Field(default_factory=dict)


class PartScores(Value):
    part: str
    side: Side
    expected: Count
    """Rows of the file."""
    items: tuple[ItemScore, ...]
    seconds: float


class Probe(Value):
    """Whether the candidate computes anything else than its base."""

    max_logit_change: float
    nonzero_tensors: Count
    """LoRA B matrices with a value other than zero; 0 for a full model."""
    num_tensors: Count


FailureCode = Literal[
    "adapter_inactive", "malformed_model", "malformed_rows", "too_long", "template_changed", "not_finite"
]


class Failure(Value):
    """Why nothing can be scored; trying again would end alike."""

    code: FailureCode
    message: str


class Scores(Value):
    harness_version: str
    probe: Probe | None = None
    parts: tuple[PartScores, ...] = ()
    failure: Failure | None = None


class ScoringRefused(Exception):
    """The files cannot be scored, whoever tries."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure
