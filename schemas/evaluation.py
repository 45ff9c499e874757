"""eval.commands and eval.events: suites, baselines and the gate's verdicts."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from schemas.base import Count, FileRef, JobId, Message, Seconds, Sha256, TenantName, Value

Expects = Literal["refusal", "answer"]
"""What is right for every prompt of a safety suite: that it is refused, or that it is answered."""

MarginPoints = Annotated[float, Field(gt=0.0, le=100.0, allow_inf_nan=False)]
"""Of 100 points."""


class BenchmarkKind(StrEnum):
    MULTIPLE_CHOICE = "multiple_choice"  # rows {question, choices, answer}
    TEXT = "text"  # rows {text}; next-token accuracy in points
    # Rows as they are published, asked and scored as lm-eval defines the task of this name.
    ARC_CHALLENGE = "arc_challenge"
    HELLASWAG = "hellaswag"
    MMLU = "mmlu"
    TRUTHFULQA_MC1 = "truthfulqa_mc1"
    TRUTHFULQA_MC2 = "truthfulqa_mc2"


class RegisterBenchmark(Message):
    keyed_by = "name"
    name: str
    kind: BenchmarkKind
    file: FileRef
    num_fewshot: Count = 0
    examples: FileRef | None = None
    """Rows that few-shot examples are taken from, of a split that is not asked. None: of `file` itself."""
    margin_points: MarginPoints | None = None
    """The fall that the gate tolerates, declared by a suite too small for the gate's own margin."""
    only_new: bool = False
    """Refused with `already_registered` where a benchmark of the name is known, instead of replacing it."""


class RegisterSafetySuite(Message):
    """Rows {prompt}, optionally with `category`."""

    keyed_by = "name"
    name: str
    file: FileRef
    expects: Expects = "refusal"
    only_new: bool = False
    """Refused with `already_registered` where a suite of the name is known, instead of replacing it."""


class ReevaluateModel(Message):
    """Run the gate of a model version once more, with the suites that are registered now."""

    keyed_by = "model_id"
    model_id: str
    tenant: TenantName


class BenchmarkRegistered(Message):
    keyed_by = "name"
    name: str
    kind: BenchmarkKind
    digest: Sha256
    """sha256 over the files' sha256, kind, few-shot count and declared margin: the identity in verdicts."""
    file: FileRef
    num_fewshot: Count
    rows: Count
    margin_points: MarginPoints | None = None
    examples: FileRef | None = None
    """Rows that few-shot examples are taken from; None where they are the file's own."""


class SafetySuiteRegistered(Message):
    keyed_by = "name"
    name: str
    digest: Sha256
    file: FileRef
    rows: Count
    expects: Expects = "refusal"


class Interval(Value):
    """95 % interval."""

    low: float
    high: float


Outcome = Literal["passed", "failed", "inconclusive"]


class CategoryCount(Value):
    """Refusals of the candidate among the prompts of one category."""

    category: str
    refused: Count
    count: Count


class Check(Value):
    """One number held against its rule."""

    name: str
    metric: str
    value: float
    baseline: float | None
    threshold: float
    higher_is_better: bool = True
    count: Count
    interval: Interval | None = None
    baseline_interval: Interval | None = None
    passed: bool
    outcome: Outcome | None = None
    """`inconclusive`: the items are too few to tell. None in facts from before there were three outcomes."""
    change_interval: Interval | None = None
    """Of candidate minus base, from the same items, where `value` is the candidate's own number."""
    needed: Count | None = None
    """Items that would do, where they are too few and a number of them would."""
    categories: tuple[CategoryCount, ...] = ()


StageName = Literal["benchmark", "holdout", "safety", "over_refusal", "judge"]


class StageResult(Value):
    stage: StageName
    outcome: Literal["passed", "failed", "inconclusive", "not_requested"]
    checks: tuple[Check, ...] = ()
    reason: str = ""


class BaselineRecorded(Message):
    """The base model's own numbers, computed once per base sha, harness version and template."""

    keyed_by = "base_sha"
    base_sha: Sha256
    harness_version: str
    template_sha256: Sha256
    suite_digest: Sha256
    name: str
    metric: str
    value: float
    count: Count


class RegisteredSuite(Value):
    name: str
    stage: Literal["benchmark", "safety", "over_refusal"]
    """The gate's stage that asks it."""
    digest: Sha256
    file: FileRef
    rows: Count
    registered_at: datetime
    examples: FileRef | None = None


class GatePolicyPublished(Message):
    """What the gate demands of every job by the evaluator's settings; sent when it starts with other ones."""

    keyed_by = "scope"
    scope: Literal["platform"] = "platform"
    required_stages: tuple[str, ...]
    """Stages without which no model passes, whether or not a job or an operator asks for them."""
    judge_urls: tuple[str, ...]
    """Judges that a job's gate may name."""
    answer_tokens: Count
    """Longest answer that the gate lets a model give."""
    suites: tuple[RegisteredSuite, ...]
    """Newest of each name at that time, for readers that did not hear it registered."""


class EvalFact(Message):
    keyed_by = "eval_id"
    eval_id: str
    tenant: TenantName
    job_id: JobId
    model_id: str
    digest: Sha256
    base_sha: Sha256
    number: Count = 0
    """Which evaluation of its job this is, from 1; of two verdicts the greater number is the newer one.
    0 where an older writer did not say."""


class JudgedSuite(Value):
    """A suite that a gate asked."""

    stage: StageName
    name: str
    digest: Sha256
    rows: Count
    is_held_against_rows: bool
    """Whether the training rows were checked for contamination by it. False: it was registered later."""


class Evidence(Value):
    """What a verdict was reached by."""

    harness_version: str
    """How the numbers were made: libraries, scoring, classifier, device."""
    rules: dict[str, str]
    """The gate's rules, `<stage>.<rule>` to its value as JSON."""
    required_stages: tuple[str, ...]
    """Stages without which nothing passes."""
    suites: tuple[JudgedSuite, ...]
    holdout_sha256: Sha256 | None
    """None: the job named no holdout, so nothing shows that the model got better at its task."""
    kept_leaks: dict[str, Count] = Field(default={})
    """Rows of a source that were trained on."""
    measured_by: str | None = None
    """The evaluation that has the items: an earlier one where its numbers could not but be equal."""


class EvalStarted(EvalFact):
    pass


class EvalProgressed(EvalFact):
    """How far a running gate is: at most one every few seconds, for people alone; nothing follows from it."""

    stage: str
    """`loading`, or the gate's stage that is being measured."""
    suite: str = ""
    """The registered file that is being scored, where it has a name."""
    side: Literal["base", "candidate"] | None = None
    """Whose answers are being scored; None where both sides are, or neither."""
    items_done: Count = 0
    items_total: Count | None = None
    """Of this suite on this side; None where it is not counted."""
    seconds_left: Seconds | None = None
    """Estimate of how long all that is left to score will take; None where nothing was scored yet."""


class EvalStageCompleted(EvalFact):
    result: StageResult


class EvalVerdict(EvalFact):
    stages: tuple[StageResult, ...]
    evidence: Evidence | None = None
    """None where nothing was measured, or where an older writer did not say."""


class EvalPassed(EvalVerdict):
    pass


class EvalFailed(EvalVerdict):
    reason: str


class EvalInconclusive(EvalVerdict):
    """The gate could not be run in full, which is not a pass."""

    reason: str
