"""What the service asks of the scoring child and what the child answers: files in the work directory."""

from collections.abc import Mapping
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from schemas.base import Count, Sha256, Value, is_none
from schemas.evaluation import BenchmarkKind
from schemas.gate import MAX_ANSWER_TOKENS, HoldoutMetric
from schemas.specification import canonical_sha256
from shared.device import Device

SCORES_FILE = "scores.json"
SCORING_VERSION = 6
"""Version of scoring. Raised when prompts, normalisation or metrics change: old baselines say nothing then."""


CPU_FORWARD_TOKENS = 4_096
"""Most tokens of a pass on a CPU: 2.4 million parameters need 0.7 of the time that they need with 16,384."""
LOGITS_PER_BATCH = 2**27
"""Number of elements of a batch's logits; a row that has more goes alone."""
LOGITS_PER_CHUNK = 2**25
"""Number of float32 logits that exist at a time: 128 MiB."""
LIBRARIES = ("lm_eval", "torch", "transformers", "peft")
"""Libraries whose releases are part of the harness version: a new one may round or render otherwise."""


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
    """Name of the part: `benchmark:<name>`, `safety:<name>` or `holdout`."""
    path: str
    sides: tuple[Side, ...]
    """Sides to score where the scoring child answers itself."""
    engine: str = ""
    """Name of the serving engine that is asked for the answers first; empty where none is."""
    engine_sides: tuple[Side, ...] = ()
    """Sides that are not known by that engine's answers."""


class BenchmarkPart(Part):
    task: Literal["benchmark"] = "benchmark"
    kind: BenchmarkKind
    num_fewshot: Count = 0
    examples_path: str | None = None
    """File of the rows that examples are taken from; None: the rows that are asked."""


class HoldoutPart(Part):
    task: Literal["holdout"] = "holdout"
    metric: HoldoutMetric = "exact_match"
    pattern: str | None = None
    """Pattern of the metric `regex`."""
    max_new_tokens: Count | None = None
    """Most tokens of an answer; None leaves it to the references."""
    is_judged: bool = False
    """Whether a judge reads the answers, which must be whole then, whatever the metric."""


class SafetyPart(Part):
    task: Literal["safety"] = "safety"


AnyPart = BenchmarkPart | HoldoutPart | SafetyPart


class Limits(Value):
    """What the operator sets for every order."""

    seed: int = 0
    batch_tokens: Count = 16_384
    """Most tokens of a forward pass, padding, shared prefix and answers to come included."""
    max_tokens: Count = 4096
    """Longest sequence in tokens; a model with a shorter context has that."""
    max_new_tokens: Count = 256
    """Most tokens of an answer to a safety prompt."""
    max_answer_tokens: Count = MAX_ANSWER_TOKENS
    """Most tokens of an answer to a row of the holdout."""
    device: Device = "cpu"
    device_name: str = ""
    """Product name of the device: equal kinds of device compute alike, others need not."""

    @property
    def dtype(self) -> Literal["bfloat16", "float32"]:
        """Type of the base model's weights; an adapter's stay in float32 beside them."""
        return "bfloat16" if self.device == "cuda" else "float32"

    @property
    def forward_tokens(self) -> int:
        """Most tokens of one forward pass of many: on a CPU fewer, whose caches hold no more."""
        return min(self.batch_tokens, CPU_FORWARD_TOKENS) if self.device == "cpu" else self.batch_tokens

    @property
    def harness_version(self) -> str:
        """Text of all that the numbers depend on besides model and rows; only equal ones are compared."""
        libraries = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
        device = f"{self.device} ({self.device_name or 'unnamed'}) in {self.dtype}"
        answers = f"{self.max_new_tokens} or {self.max_answer_tokens}"
        limits = f"{self.max_tokens} tokens, answers of {answers}, batches of {self.batch_tokens}"
        return f"scoring {SCORING_VERSION}, {libraries}, {device}, {limits}, seed {self.seed}"


class WorkOrder(Limits):
    """What is scored. Its paths are keys in S3 until it is known where it is carried out."""

    base_path: str
    template_sha256: Sha256
    candidate: Candidate
    parts: tuple[AnyPart, ...]
    num_devices: Annotated[PositiveInt | None, Field(exclude_if=is_none)] = None
    """Number of devices of one machine that the model's layers are spread over; None: they are on one."""

    @property
    def inputs(self) -> tuple[Path, ...]:
        """Paths of all that the scoring child reads."""
        examples = (part.examples_path for part in self.parts if isinstance(part, BenchmarkPart))
        paths = (self.base_path, self.candidate.path, *(part.path for part in self.parts), *examples)
        return tuple(Path(path) for path in paths if path is not None)

    @property
    def sha256(self) -> str:
        return canonical_sha256(self.model_dump(mode="json"))

    def at(self, paths: Mapping[str, Path]) -> "WorkOrder":
        """Return the order with other paths, each by the one that it takes the place of."""

        def part_at(part: AnyPart) -> AnyPart:
            changes = {"path": str(paths[part.path])}
            if isinstance(part, BenchmarkPart) and part.examples_path is not None:
                changes["examples_path"] = str(paths[part.examples_path])
            return part.model_copy(update=changes)

        candidate = self.candidate.model_copy(update={"path": str(paths[self.candidate.path])})
        return self.model_copy(
            update={
                "base_path": str(paths[self.base_path]),
                "candidate": candidate,
                "parts": tuple(map(part_at, self.parts)),
            }
        )


class ItemScore(Value):
    """Scores of one row of a file. `numbers`: `hits`, `tokens`, `nats`, `bytes`, whichever was asked for.

    `hits` is 1 or 0, of some metrics a share in between; for text the number of tokens.
    """

    key: str
    """Line, and start of the sha256 of what the model was given."""
    answer: str | None = None
    is_cut: bool = False
    """Whether the model had more to say than it was allowed to."""
    category: str = ""
    """Category of a prompt whose suite has categories."""
    numbers: dict[str, float] = Field(default_factory=dict)


class PartScores(Value):
    part: str
    side: Side
    expected: Count
    """Number of rows of the file."""
    items: tuple[ItemScore, ...]
    seconds: float
    engine: str = ""
    """Name of the serving engine that gave the answers; empty where the scoring child did."""
    engine_problem: str = ""
    """Reason why the engine that was to be asked gave no answers."""


class Probe(Value):
    """Whether the candidate computes anything else than its base."""

    max_logit_change: float
    nonzero_tensors: Count
    """Number of LoRA B matrices with a value other than zero; 0 for a full model."""
    num_tensors: Count
    base_dtype: str = ""
    """Type of the base model's weights while both sides were scored."""
    adapter_dtype: str = ""
    """Type of the adapter's matrices; serving may hold them in another."""


FailureCode = Literal[
    "adapter_inactive",
    "malformed_model",
    "malformed_rows",
    "too_long",
    "template_changed",
    "not_finite",
    "slow_pattern",
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
