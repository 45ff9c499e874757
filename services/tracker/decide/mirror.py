"""What the run of a job or a sweep in MLflow shows: what each fact about it adds."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from schemas.base import DatasetRef
from schemas.evaluation import EvalFailed, EvalInconclusive, EvalPassed
from schemas.job import (
    JobCancelled,
    JobEvaluating,
    JobFailed,
    JobPaused,
    JobRequeued,
    JobScheduled,
    JobStageCompleted,
    JobSucceeded,
)
from schemas.model import ModelArchived, ModelDemoted, ModelPromoted, ModelRegistered
from schemas.sweep import SweepEnded, SweepState, SweepSubmitted, TrialEnded
from schemas.training import REWARDS, CheckpointWritten, StepsRecorded

JobProgress = JobScheduled | JobStageCompleted | JobEvaluating | JobPaused | JobRequeued
JobEnd = JobSucceeded | JobFailed | JobCancelled
Verdict = EvalPassed | EvalFailed | EvalInconclusive
ModelChange = ModelRegistered | ModelPromoted | ModelDemoted | ModelArchived
SweepChange = SweepSubmitted | TrialEnded | SweepEnded
Mirrored = JobProgress | JobEnd | Verdict | ModelChange | StepsRecorded | CheckpointWritten | SweepChange

LONGEST_VALUE = 5_000
"""Characters of a parameter's or tag's value; MLflow takes 6,000 and 8,000."""
NOT_IN_NAMES = re.compile(r"[^\w\-. :/]")
"""What MLflow takes in no name of a metric or parameter."""
PREFIX = "retune."
"""Of our own tags and metrics; those of a step have the names that they have everywhere."""
VERDICTS = {EvalPassed: "passed", EvalFailed: "failed", EvalInconclusive: "inconclusive"}


class RunStatus(StrEnum):
    """MLflow's states of a run."""

    SCHEDULED = "SCHEDULED"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    KILLED = "KILLED"


SWEEP_STATUS = {
    SweepState.SUCCEEDED: RunStatus.FINISHED,
    SweepState.FAILED: RunStatus.FAILED,
    SweepState.CANCELLED: RunStatus.KILLED,
}


@dataclass(frozen=True)
class Measured:
    """Numbers of one step, by the names of their metrics."""

    step: int
    time: datetime
    values: Mapping[str, float]


@dataclass(frozen=True)
class Entry:
    """What is to be logged in a run."""

    measured: tuple[Measured, ...] = ()
    of_weights: tuple[Measured, ...] = ()
    """What was measured of weights, of which two messages may speak: what is logged already is left out."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    """Of a tag that comes again the last value counts."""
    datasets: tuple[DatasetRef, ...] = ()
    status: RunStatus | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True)
class Run:
    """What is in a run, or waits to be."""

    subject_id: str
    """Id of the job or sweep."""
    tenant: str
    parent_id: str | None = None
    """Id of the sweep of which the job is a trial, once that is known."""
    last_step: int = -1
    """Newest step whose metrics were taken up: an attempt that trains steps again adds nothing to them."""
    parameters: frozenset[str] = frozenset()
    """Names of the parameters that were taken up: MLflow lets none change."""


def subject_of(fact: Mirrored) -> str:
    """Return the id of the job or sweep in whose run the fact is logged."""
    return fact.sweep_id if isinstance(fact, SweepChange) else fact.job_id


def add(run: Run, fact: Mirrored, *, now: datetime) -> tuple[Run, Entry]:
    """Return the run with the fact taken up, and what is to be logged of it."""
    match fact:
        case StepsRecorded():
            entry = _steps(run, fact, now=now)
        case CheckpointWritten():
            entry = Entry(of_weights=(Measured(fact.bundle.step, now, _named(fact.metrics)),))
        case JobScheduled():
            entry = _attempt(fact)
        case EvalPassed() | EvalFailed() | EvalInconclusive():
            entry = _verdict(fact, now=now)
        case ModelRegistered() | ModelPromoted() | ModelDemoted() | ModelArchived():
            entry = _model(fact)
        case SweepSubmitted() | TrialEnded() | SweepEnded():
            entry = _sweep(fact, now=now)
        case JobSucceeded() | JobFailed() | JobCancelled():
            entry = _end(fact, now=now)
        case _:
            entry = _progress(fact)
    parameters = {name: value for name, value in entry.parameters.items() if name not in run.parameters}
    steps = [each.step for each in fact.steps] if isinstance(fact, StepsRecorded) else []
    trial = fact.spec.trial if isinstance(fact, JobScheduled) else None
    run = replace(
        run,
        parent_id=trial.sweep_id if trial else run.parent_id,
        last_step=max(run.last_step, *steps, -1),
        parameters=run.parameters | parameters.keys(),
    )
    return run, replace(entry, parameters=parameters)


def _steps(run: Run, fact: StepsRecorded, *, now: datetime) -> Entry:
    steps = [Measured(each.step, each.time, each.by_name) for each in fact.steps if each.step > run.last_step]
    validated = [Measured(each.step, now, _named(each.metrics)) for each in fact.validations]
    return Entry(tuple(steps), of_weights=tuple(validated))


def _named(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return what was measured of weights; a step has its own rewards, and the loss that is named twice."""
    named = {f"valid_{name}" if name in REWARDS else name: value for name, value in metrics.items()}
    return {name: value for name, value in named.items() if name != "train_loss"}


def _attempt(fact: JobScheduled) -> Entry:
    """Return what an attempt trains: of each stage the recipe once, and where this attempt runs."""
    stage = fact.stage.number if fact.stage else 1
    prefix = f"stage_{stage}." if stage > 1 else ""
    recipe = fact.spec.recipe.model_dump(mode="json", exclude_none=True)
    parameters = {"base_model": fact.spec.base_model, **_flattened(recipe, prefix)}
    ours = {
        "attempt": fact.attempt,
        "base_sha": fact.base_sha,
        "config_hash": fact.config_hash,
        "dataset_version": fact.dataset.version,
        "pool": fact.pool,
        "capacity_type": fact.capacity_type,
        "nodes": fact.nodes,
        "devices_per_node": fact.devices_per_node,
        "state": "running",
    }
    if fact.resume is not None:
        ours["resumed_at_step"] = fact.resume.step
    if fact.stage is not None:
        ours["training_stage"] = f"{stage} of {fact.stage.num_stages}"
    if fact.spec.trial is not None:
        ours |= {"sweep_id": fact.spec.trial.sweep_id, "trial": fact.spec.trial.number}
    if fact.start_from is not None:
        ours["started_from"] = fact.start_from.model_dump_json(exclude_none=True)
    metadata = {_name(f"metadata.{key}"): _cut(value) for key, value in fact.spec.metadata.items()}
    tags = metadata | _tags(ours)
    return Entry(parameters=parameters, tags=tags, datasets=(fact.dataset,), status=RunStatus.RUNNING)


def _progress(fact: JobStageCompleted | JobEvaluating | JobPaused | JobRequeued) -> Entry:
    match fact:
        case JobEvaluating():
            return Entry(tags=_tags({"state": "evaluating"}))
        case JobPaused():
            return Entry(tags=_tags({"state": "paused"}), status=RunStatus.SCHEDULED)
        case JobRequeued():
            reason = {"state": "queued", "requeued": f"{fact.failure_class}: {fact.message}"}
            return Entry(tags=_tags(reason), status=RunStatus.SCHEDULED)
        case JobStageCompleted():
            return Entry(tags=_tags({"state": "queued"}), status=RunStatus.SCHEDULED)


def _end(fact: JobEnd, *, now: datetime) -> Entry:
    match fact:
        case JobSucceeded():
            ours: dict[str, Any] = {"state": "succeeded", "deployed": json.dumps(fact.deployed)}
            status = RunStatus.FINISHED
        case JobFailed():
            ours = {"state": "failed", "error": f"{fact.code}: {fact.message}"}
            status = RunStatus.FAILED
        case JobCancelled():
            ours = {"state": "cancelled", "cancelled_by": fact.reason}
            status = RunStatus.KILLED
    return Entry(tags=_tags(ours), status=status, ended_at=now)


def _verdict(fact: Verdict, *, now: datetime) -> Entry:
    """Return a verdict of the gate, of whose evaluations each is a step of the gate's metrics."""
    values: dict[str, float] = {}
    for criterion in (each for check in fact.checks for each in check.criteria):
        name = _name(f"{PREFIX}gate.{criterion.name}.{criterion.metric}")
        values[name] = criterion.value
        if criterion.baseline is not None:
            values[f"{name}.base"] = criterion.baseline
    ours = {
        "gate": VERDICTS[type(fact)],
        "gate_reason": "" if isinstance(fact, EvalPassed) else fact.reason,
        "gate_checks": json.dumps({each.check: each.outcome for each in fact.checks}),
        "eval_id": fact.eval_id,
        "model_id": fact.model_id,
    }
    return Entry((Measured(fact.number, now, values),), tags=_tags(ours))


def _model(fact: ModelChange) -> Entry:
    ours = {"model": fact.full_name, "model_id": fact.model_id, "model_digest": fact.digest}
    ours["model_stage"] = "archived" if isinstance(fact, ModelArchived) else fact.stage
    if isinstance(fact, ModelPromoted) and fact.approved_by:
        ours["approved_by"] = fact.approved_by
    return Entry(tags=_tags(ours))


def _sweep(fact: SweepChange, *, now: datetime) -> Entry:
    """Return what a sweep searches, the loss of each trial with the trial's number as its step, and the best one."""
    match fact:
        case SweepSubmitted():
            search = fact.spec.model_dump(mode="json", exclude={"job"}, exclude_none=True)
            parameters = {"base_model": fact.spec.job.base_model, **_flattened(search, "")}
            return Entry(parameters=parameters, tags=_tags({"state": "running"}), status=RunStatus.RUNNING)
        case TrialEnded():
            values = {} if fact.valid_loss is None else {"trial.valid_loss": fact.valid_loss}
            return Entry((Measured(fact.number, now, values),) if values else ())
        case SweepEnded():
            ours = {"state": fact.state, "sweep": fact.message, "cost_usd": fact.cost}
            if fact.best is not None:
                ours |= {"best_trial": fact.best, "best_valid_loss": fact.best_valid_loss}
            return Entry(tags=_tags(ours), status=SWEEP_STATUS[fact.state], ended_at=now)


def _tags(values: Mapping[str, Any]) -> dict[str, str]:
    return {f"{PREFIX}{name}": _cut(str(value)) for name, value in values.items()}


def _flattened(value: Any, prefix: str) -> dict[str, str]:
    """Return the leaves of nested fields by their paths, `lora.rank`; a list is one leaf."""
    leaves: dict[str, str] = {}
    for name, inner in value.items():
        if isinstance(inner, dict):
            leaves |= _flattened(inner, f"{prefix}{name}.")
        else:
            leaves[_name(f"{prefix}{name}")] = _cut(inner if isinstance(inner, str) else json.dumps(inner))
    return leaves


def _name(text: str) -> str:
    return NOT_IN_NAMES.sub("_", text)[:250]


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


def without_logged(entry: Entry, new: Collection[tuple[str, int]]) -> Entry:
    """Return the entry with those alone of what was measured of weights whose name and step are new."""
    kept = [
        replace(each, values={name: value for name, value in each.values.items() if (name, each.step) in new})
        for each in entry.of_weights
    ]
    return replace(entry, measured=(*entry.measured, *(each for each in kept if each.values)), of_weights=())


def joined(entries: Sequence[Entry]) -> Entry:
    """Return one entry that logs all of these, in their order."""
    tags: dict[str, str] = {}
    parameters: dict[str, str] = {}
    for entry in entries:
        tags |= entry.tags
        parameters |= entry.parameters
    statuses = [entry for entry in entries if entry.status is not None]
    return Entry(
        measured=tuple(each for entry in entries for each in entry.measured),
        parameters=parameters,
        tags=tags,
        datasets=tuple(dict.fromkeys(each for entry in entries for each in entry.datasets)),
        status=statuses[-1].status if statuses else None,
        ended_at=statuses[-1].ended_at if statuses else None,
    )
