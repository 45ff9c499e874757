"""eval.commands and eval.events: suites, baselines and the gate's verdicts."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from schemas.base import Count, FileRef, JobId, Message, Reference, Seconds, Sha256, TenantName, Value

Expects = Literal["refusal", "answer"]
"""What is right for every prompt of a safety suite: that it is refused, or that it is answered."""

MarginPoints = Annotated[float, Field(ge=0.001, le=100.0, allow_inf_nan=False)]
"""Points out of 100."""


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
    """Have every gate ask this file; it takes the place of one of the same name."""

    keyed_by = "name"
    name: Reference
    """Name that the file is registered under."""
    kind: BenchmarkKind
    """How its rows are prompted and scored."""
    file: FileRef
    num_fewshot: Annotated[int, Field(ge=0, le=1_000)] = 0
    """Solved examples in front of each question."""
    examples: FileRef | None = None
    """Rows that few-shot examples are taken from, of a split that is not asked. None: of `file` itself."""
    margin_points: MarginPoints | None = None
    """The fall that the gate tolerates, declared by a suite too small for the gate's own margin."""
    only_new: bool = False
    """Refuse this with `already_registered` where a benchmark of the name is known, instead of replacing it."""


class RegisterSafetySuite(Message):
    """Have every gate ask the prompts of this file: rows {prompt}, optionally with `category`."""

    keyed_by = "name"
    name: Reference
    """Name that the file is registered under."""
    file: FileRef
    expects: Expects = "refusal"
    """What is right for every prompt of the file."""
    only_new: bool = False
    """Refuse this with `already_registered` where a suite of the name is known, instead of replacing it."""


class ReevaluateModel(Message):
    """Run the gate of a model version once more, with the suites that are registered now."""

    keyed_by = "model_id"
    model_id: Reference
    """Id of the model version, `mv-…`."""
    tenant: TenantName


class BenchmarkRegistered(Message):
    """Every gate asks this file from now on."""

    keyed_by = "name"
    name: str
    """Name that the file is registered under."""
    kind: BenchmarkKind
    """How its rows are prompted and scored."""
    digest: Sha256
    """sha256 over the files' sha256, kind, few-shot count and declared margin: the identity in verdicts."""
    file: FileRef
    num_fewshot: Count
    """Solved examples in front of each question."""
    rows: Count
    """Number of rows of the file."""
    margin_points: MarginPoints | None = None
    """The fall that its owner declares tolerable; None: the gate's own."""
    examples: FileRef | None = None
    """Rows that few-shot examples are taken from; None where they are the file's own."""


class SafetySuiteRegistered(Message):
    """Every gate asks this file from now on."""

    keyed_by = "name"
    name: str
    """Name that the file is registered under."""
    digest: Sha256
    file: FileRef
    rows: Count
    """Number of rows of the file."""
    expects: Expects = "refusal"
    """What is right for every prompt of the file."""


class Interval(Value):
    """95 % interval."""

    low: float
    """Lower end."""
    high: float
    """Upper end."""


Outcome = Literal["passed", "failed", "inconclusive"]


class CategoryCount(Value):
    """Refusals of the candidate among the prompts of one category."""

    category: str
    """Category as the prompts' rows name it."""
    refused: Count
    """Prompts that the candidate refused."""
    count: Count
    """Prompts of the category."""


class Criterion(Value):
    """One number compared with its rule."""

    name: str
    """Benchmark, suite or rule."""
    metric: str
    """What was measured, with its unit."""
    value: float
    """The candidate's number."""
    baseline: float | None
    """The base model's own number; None where the rule needs none."""
    threshold: float
    """What the rule asks for."""
    higher_is_better: bool = True
    """Whether the value must be at least the threshold, or at most."""
    count: Count
    """Items that the number comes from."""
    interval: Interval | None = None
    baseline_interval: Interval | None = None
    passed: bool
    """Whether the rule is kept."""
    outcome: Outcome | None = None
    """`inconclusive`: the items are too few to decide. None in facts from before there were three outcomes."""
    change_interval: Interval | None = None
    """Interval of candidate minus base, from the same items, where `value` is the candidate's own number."""
    needed: Count | None = None
    """Items that would do, where they are too few and a number of them would."""
    categories: tuple[CategoryCount, ...] = ()


CheckName = Literal["benchmark", "holdout", "safety", "over_refusal", "judge"]


class CheckResult(Value):
    """The result of one check of the gate."""

    check: CheckName
    """Which check it is."""
    outcome: Literal["passed", "failed", "inconclusive", "not_requested"]
    """Outcome of the worst of its criteria."""
    criteria: tuple[Criterion, ...] = ()
    reason: str = ""
    """Why it did not pass, for people."""


class BaselineRecorded(Message):
    """The base model's own numbers, computed once per base sha, harness version and template."""

    keyed_by = "base_sha"
    base_sha: Sha256
    harness_version: str
    """How the numbers were made: libraries, scoring, classifier, device."""
    template_sha256: Sha256
    suite_digest: Sha256
    name: str
    """Name of the benchmark or suite."""
    metric: str
    """What was measured."""
    value: float
    """The base model's number."""
    count: Count
    """Items scored."""


class RegisteredSuite(Value):
    name: str
    """Name that the file is registered under."""
    check: Literal["benchmark", "safety", "over_refusal"]
    """The gate's check that asks it."""
    digest: Sha256
    file: FileRef
    rows: Count
    """Number of rows of the file."""
    registered_at: datetime
    """When it took the place of an older one of its name."""
    examples: FileRef | None = None


class GatePolicyPublished(Message):
    """What the gate demands of every job by the evaluator's settings; sent when it starts with other ones."""

    keyed_by = "scope"
    scope: Literal["platform"] = "platform"
    required_checks: tuple[str, ...]
    """Checks without which no model passes, whether or not a job or an operator asks for them."""
    judge_urls: tuple[str, ...]
    """Judges that a job's gate may name."""
    answer_tokens: Count
    """Longest answer that the gate lets a model give."""
    suites: tuple[RegisteredSuite, ...]
    """The newest suite of each name at that time, for readers that missed its registration."""


class EvalFact(Message):
    keyed_by = "eval_id"
    eval_id: str
    """Id of the evaluation."""
    tenant: TenantName
    job_id: JobId
    model_id: str
    """Id of the model version, `mv-…`."""
    digest: Sha256
    base_sha: Sha256
    number: Count = 0
    """Which evaluation of its job this is, from 1; of two verdicts the greater number is the newer one.
    0 where an older writer did not say."""


class JudgedSuite(Value):
    """A suite whose items a gate used."""

    check: CheckName
    """The gate's check that asked it."""
    name: str
    """Name that it is registered under."""
    digest: Sha256
    rows: Count
    """Number of rows of the file."""
    is_checked_against_rows: bool
    """Whether the training rows were checked for contamination by it. False: it was registered later."""


class Evidence(Value):
    """What a verdict was reached by."""

    harness_version: str
    """How the numbers were made: libraries, scoring, classifier, device."""
    rules: dict[str, str]
    """The gate's rules, `<check>.<rule>` to its value as JSON."""
    required_checks: tuple[str, ...]
    """Checks without which nothing passes."""
    suites: tuple[JudgedSuite, ...]
    holdout_sha256: Sha256 | None
    """sha256 of the holdout. None: the job named none, so nothing shows that the model got better at its task."""
    kept_leaks: dict[str, Count] = Field(default={})
    """Rows of a source that were trained on."""
    measured_by: str | None = None
    """The evaluation that has the items: an earlier one where its numbers could not but be equal."""


class EvalStarted(EvalFact):
    """The gate has begun to measure the version."""


class EvalProgressed(EvalFact):
    """How far a running gate is: at most one every few seconds, for people alone; nothing follows from it."""

    activity: str
    """`loading`, or the gate's check that is being measured."""
    suite: str = ""
    """The registered file that is being scored, where it has a name."""
    side: Literal["base", "candidate"] | None = None
    """Whose answers are being scored; None where both sides are, or neither."""
    items_done: Count = 0
    """Items scored of this suite on this side."""
    items_total: Count | None = None
    """Items of this suite on this side in all; None where they are not counted."""
    seconds_left: Seconds | None = None
    """Estimate of how long all that is left to score will take; None where nothing was scored yet."""


class EvalCheckCompleted(EvalFact):
    """One check of a running gate has its outcome."""

    result: CheckResult


class EvalVerdict(EvalFact):
    checks: tuple[CheckResult, ...]
    evidence: Evidence | None = None
    """What the verdict was reached by; None where nothing was measured, or where an older writer did not say."""


class EvalPassed(EvalVerdict):
    """Every requested check of the gate passed."""


class EvalFailed(EvalVerdict):
    """A check of the gate failed; the version is not served."""

    reason: str
    """Why, for people."""


class EvalInconclusive(EvalVerdict):
    """The gate could not be run in full, which is not a pass."""

    reason: str
    """Why, for people."""
