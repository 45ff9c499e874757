"""sweep.commands and sweep.events: trials of one job with other numbers in its recipe, and which of them was best."""

from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, ValidationError, model_validator

from schemas.base import (
    Count,
    DatasetId,
    JobId,
    Message,
    Reference,
    Sha256,
    Spec,
    SpendingLimit,
    SweepId,
    TenantName,
    Usd,
)
from schemas.compatibility import check
from schemas.job import Artifact
from schemas.recipe_rules import Refusal
from schemas.specification import JobSpec

Number = Annotated[int, Field(ge=-(2**53), le=2**53)] | Annotated[float, Field(ge=-1e15, le=1e15)]
Scalar = bool | Number | Annotated[str, Field(max_length=64)]
"""Value of a parameter in a trial."""
ParameterName = Annotated[str, Field(max_length=64)]
Parameters = Annotated[dict[ParameterName, Scalar], Field(max_length=16)]
"""Values of a trial by the field of the recipe that they are of: `learning_rate`, `lora.rank`."""

SEARCHED = frozenset(
    {
        *(
            "learning_rate",
            "learning_rate_multiplier",
            "num_epochs",
            "batch_size",
            "warmup_ratio",
            "schedule",
        ),
        *("decay_ratio", "optimizer", "weight_decay", "max_grad_norm", "seed"),
        *("lora.rank", "lora.alpha", "lora.dropout", "lora.use_rslora"),
        *("dpo.beta", "dpo.label_smoothing", "dpo.gamma", "dpo.loss"),
    }
)
"""Fields of a recipe that a sweep may search."""
MAX_GRID = 10_000


class Choices(Spec):
    """Values that a field of the recipe may have, one by one."""

    choices: Annotated[tuple[Scalar, ...], Field(min_length=1, max_length=64)]
    """The values."""

    @model_validator(mode="after")
    def _are_values(self) -> Self:
        if "auto" in self.choices:
            raise ValueError("found the choice auto, expected values: a trial's configuration names its own")
        return self

    @property
    def grid(self) -> tuple[Scalar, ...]:
        return self.choices

    @property
    def extremes(self) -> tuple[Scalar, ...]:
        return self.choices


class Range(Spec):
    """Values that a field of the recipe may have, from `low` to `high`."""

    low: Number
    """Least value."""
    high: Number
    """Greatest value; with a step the greatest that is so many steps from the least."""
    step: Number | None = None
    """Distance between values, from `low` on. None: any number, of two whole bounds any whole number."""
    log: bool = False
    """Whether the logarithm is searched evenly: for rates, whose order of magnitude matters."""

    @model_validator(mode="after")
    def _is_range(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"found low {self.low} and high {self.high}, expected low below high")
        if self.log and (self.low <= 0 or self.step is not None):
            raise ValueError(
                f"with log: found low {self.low} and step {self.step}, expected low above 0, no step"
            )
        if self.step is not None and self.step <= 0:
            raise ValueError(f"found step {self.step}, expected more than 0")
        return self

    @property
    def is_integer(self) -> bool:
        """Whether its values are whole numbers."""
        return all(isinstance(each, int | None) for each in (self.low, self.high, self.step))

    @property
    def grid(self) -> tuple[Scalar, ...] | None:
        """All values, in order; None where there is no step between them."""
        if self.step is None:
            return None
        count = min(int((self.high - self.low) / self.step + 1e-9) + 1, MAX_GRID + 1)
        return tuple(self.low + index * self.step for index in range(count))

    @property
    def extremes(self) -> tuple[Scalar, ...]:
        """Values that are tried before a sweep is taken: what is refused of them would fail as a trial."""
        return self.low, self.high


def _kind_of(value: Any) -> str:
    has_choices = "choices" in value if isinstance(value, dict) else isinstance(value, Choices)
    return "choices" if has_choices else "range"


Parameter = Annotated[
    Annotated[Choices, Tag("choices")] | Annotated[Range, Tag("range")], Discriminator(_kind_of)
]


class PruningRule(StrEnum):
    MEDIAN = "median"  # worse than the median of earlier trials at the same part of their runs
    SUCCESSIVE_HALVING = (
        "successive_halving"  # at each rung the best share of those that came there continues
    )
    HYPERBAND = "hyperband"  # successive halving in brackets, of which each spares its trials for longer


class PruningSpec(Spec):
    """Which trials end early, by the lowest validation loss of their bundles so far."""

    rule: PruningRule = PruningRule.MEDIAN
    """With whom a trial is compared, and where."""
    after: Annotated[float, Field(ge=0.01, lt=1.0)] = 0.1
    """Part of its run before which no trial is pruned; with rungs, where the first is."""
    min_trials: Annotated[int, Field(ge=1, le=1_000)] = 5
    """With `median`: earlier trials that must have come as far."""
    reduction_factor: Annotated[int, Field(ge=2, le=16)] = 3
    """With rungs: one of so many trials continues, to a rung that is so many times farther."""


Algorithm = Literal["grid", "random", "tpe"]
"""How a trial's values are chosen: every combination in order, at random, or by a tree-structured Parzen estimator
(Optuna's) from the trials before."""


class SearchSpec(Spec):
    """Which values are tried, and how. One budget and one number of trials at once for all of them."""

    parameters: Annotated[dict[ParameterName, Parameter], Field(min_length=1, max_length=16)]
    """What is searched, by field of the recipe: `learning_rate`, `lora.rank`."""
    algorithm: Algorithm = "tpe"
    """How values are chosen: every combination in order, at random, or by an estimate from earlier trials."""
    num_trials: Annotated[int, Field(ge=1, le=1_000)] = 20
    """Trials, duplicates included; with `grid` at most so many combinations are tried."""
    concurrency: Annotated[int, Field(ge=1, le=64)] = 2
    """Trials at once. With `tpe` or pruning a trial learns from all but the newest so many before it."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of what is chosen at random."""
    pruning: PruningSpec | None = None
    """None: every trial is trained to its end."""
    max_cost: SpendingLimit | None = None
    """US dollars for all trials together: when they are spent, what runs is ended and nothing more begins."""
    max_failed_trials: Annotated[int, Field(ge=1, le=1_000)] = 5
    """So many failed trials end the sweep."""


class SweepSpec(SearchSpec):
    """Which values are tried in whose recipe."""

    job: JobSpec
    """The job that each trial is, but for its parameters. `auto_deploy` is for the best one."""

    @property
    def looks_back(self) -> bool:
        """Whether what becomes of a trial depends on those before it."""
        return self.algorithm == "tpe" or self.pruning is not None

    @property
    def grid_size(self) -> int | None:
        """Number of all combinations; None where a range has no step."""
        size = 1
        for parameter in self.parameters.values():
            if (values := parameter.grid) is None:
                return None
            size *= len(values)
        return size

    @property
    def most_trials(self) -> int:
        return (
            min(self.num_trials, self.grid_size or MAX_GRID) if self.algorithm == "grid" else self.num_trials
        )


def with_parameters(job: JobSpec, parameters: Parameters) -> JobSpec:
    """Return the job with these values in its recipe. Raises ValueError where one is none that the field takes."""
    recipe = job.recipe.model_dump()
    for name, value in parameters.items():
        *outer, field = name.split(".")
        part = recipe
        for each in outer:
            part[each] = dict(part.get(each) or {})
            part = part[each]
        part[field] = value
    return job.model_copy(update={"recipe": type(job.recipe).model_validate(recipe)})


def check_sweep(spec: SweepSpec) -> Refusal | None:
    """Return why the sweep, or a trial at the ends of its ranges, could not run whatever its files; or None."""
    if unknown := sorted(set(spec.parameters) - SEARCHED):
        message = f"parameters: found {unknown[0]!r}, expected one of {', '.join(sorted(SEARCHED))}"
        return Refusal("unknown_parameter", message, "parameters")
    if spec.job.later_stages:
        message = "job.later_stages: a sweep is of one stage. Nearest that works: a sweep of the first stage"
        return Refusal("stages_of_a_sweep", message, "job.later_stages")
    if spec.job.validation_file is None:
        message = (
            "job.validation_file: found none, expected one: trials are compared by their validation loss"
        )
        return Refusal("no_validation_file", message, "job.validation_file")
    return _of_grid(spec) or _of_extremes(spec)


def _of_grid(spec: SweepSpec) -> Refusal | None:
    if spec.algorithm != "grid":
        return None
    for name, parameter in spec.parameters.items():
        if parameter.grid is None:
            expected = "expected choices or a step with algorithm grid"
            message = f"parameters.{name}: found a range without a step, {expected}"
            return Refusal("endless_grid", message, f"parameters.{name}")
    if (spec.grid_size or 0) > MAX_GRID:
        message = f"parameters: found more than {MAX_GRID:,} combinations, expected fewer with algorithm grid"
        return Refusal("endless_grid", message, "parameters")
    return None


def _of_extremes(spec: SweepSpec) -> Refusal | None:
    for name, values in _to_try(spec):
        try:
            refusal = check(with_parameters(spec.job, values))
        except ValueError as error:
            refused = _refused_name(error)
            at = refused if refused in values else name
            problem = str(error).splitlines()[-2:][0].strip() or str(error)
            message = f"parameters.{at}: {values[at]!r} is none that recipe.{at} takes: {problem}"
            return Refusal("invalid_parameter", message, f"parameters.{at}")
        if refusal is not None:
            message = f"parameters.{name} with {values[name]!r}: {refusal.message}"
            return Refusal(refusal.code, message, f"parameters.{name}")
    return None


def _refused_name(error: ValueError) -> str:
    """Return the field whose value is refused, which may be the first value of another parameter."""
    locations = [each["loc"] for each in error.errors()] if isinstance(error, ValidationError) else [()]
    return ".".join(map(str, locations[0]))


def _to_try(spec: SweepSpec) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each parameter's ends, beside the first value of the others."""
    first = {name: parameter.extremes[0] for name, parameter in spec.parameters.items()}
    for name, parameter in spec.parameters.items():
        for value in parameter.extremes:
            yield name, first | {name: value}


class SweepState(StrEnum):
    RUNNING = "running"  # trials begin
    STOPPING = "stopping"  # no more begin, and what runs is being ended
    SUCCEEDED = "succeeded"  # a trial is the best one
    FAILED = "failed"  # no trial has a validation loss, or too many failed
    CANCELLED = "cancelled"  # somebody asked for it


class TrialState(StrEnum):
    RUNNING = "running"  # its job has not ended
    COMPLETED = "completed"  # trained to its end
    PRUNED = "pruned"  # ended early, for others were better at the same part of their runs
    DUPLICATE = "duplicate"  # an earlier trial has the same configuration hash: not run again
    FAILED = "failed"  # its job failed, or measured nothing
    CANCELLED = "cancelled"  # its job was cancelled, by a person or by the budget


class StopCause(StrEnum):
    """Why a sweep is stopped."""

    USER = "user"  # somebody asked for it
    BUDGET = "budget"  # its budget is spent
    FAILURES = "failures"  # too many trials failed


class SweepMessage(Message):
    keyed_by = "sweep_id"
    sweep_id: Reference
    """Id of the sweep: in a command any text, so that a bad one is refused with a reason; in a fact a SweepId."""
    tenant: TenantName


class SubmitSweep(SweepMessage):
    """Try several configurations of one job on one dataset."""

    dataset_id: Reference
    """The SubmitDataset that makes the dataset of all trials."""
    spec: SweepSpec


class CancelSweep(SweepMessage):
    """Begin no more trials and end those that run. None goes to the gate."""


class SweepFact(SweepMessage):
    sweep_id: SweepId


class SweepSubmitted(SweepFact):
    """The sweep is accepted."""

    dataset_id: DatasetId
    spec: SweepSpec
    submitted_at: datetime
    """When the tracker took it."""


class TrialFact(SweepFact):
    number: Count
    """Place of the trial in the sweep, from 0."""
    job_id: JobId
    """The trial's job, which follows from sweep and number; of a duplicate one that is never submitted."""


class TrialSubmitted(TrialFact):
    """A trial was chosen; its job is asked for, unless it is a duplicate."""

    parameters: Parameters
    """Values by the field of the recipe that they are of."""
    config_hash: Sha256
    """Hash of the configuration, beside the dataset that all trials share; equal ones are the same experiment."""
    duplicate_of: Count | None = None
    """The earlier trial with the same hash."""


class TrialEnded(TrialFact):
    """What came of a trial is decided. Its job may still be stopping where it was pruned."""

    state: TrialState
    """How it ended."""
    valid_loss: float | None
    """Validation loss of what was trained, of the best checkpoint where the recipe asks for that; of a pruned trial
    the lowest so far. None: nothing was measured."""
    message: str = ""
    """Why it ended so, for people."""


class SweepStopping(SweepFact):
    """No more trials begin, and those that run are being ended."""

    cause: StopCause
    message: str
    """Why, for people."""


class SweepEnded(SweepFact):
    """No trial runs and none will begin."""

    state: SweepState
    """How it ended."""
    best: Count | None
    """Number of the best trial, which alone goes to the gate where the sweep succeeded."""
    best_valid_loss: float | None
    """Validation loss of the best trial."""
    num_trials: Count
    """Number of trials, duplicates included."""
    cost: Usd
    """What the tenant pays for all trials, as far as it is known."""
    message: str
    """How it ended, for people."""


class TrialChosen(Artifact):
    """The best trial of a sweep, which alone is registered and goes to the gate."""
