"""What a sweep does next: which trial begins, which is over, when all are, and which was best. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Literal

from schemas.base import LABEL, CommandRefused, Message, TrialOf
from schemas.identity import config_hash
from schemas.job import (
    CancelJob,
    JobCancelled,
    JobEvaluating,
    JobFailed,
    JobQueued,
    JobSucceeded,
    SubmitJob,
)
from schemas.sweep import (
    Parameters,
    StopCause,
    SubmitSweep,
    SweepEnded,
    SweepSpec,
    SweepState,
    SweepStopping,
    SweepSubmitted,
    TrialEnded,
    TrialState,
    TrialSubmitted,
    check_sweep,
    with_parameters,
)
from schemas.training import BundleKind, CheckpointWritten
from services.tracker.decide.pruning import why_pruned
from services.tracker.decide.trial import Trial, job_id_of
from shared.errors import Refused

ENDED = frozenset({SweepState.SUCCEEDED, SweepState.FAILED, SweepState.CANCELLED})
JobNews = (
    JobQueued | JobEvaluating | JobSucceeded | JobFailed | JobCancelled | CommandRefused | CheckpointWritten
)
"""What is followed of a trial's job."""


@dataclass(frozen=True)
class Sweep:
    id: str
    tenant: str
    dataset_id: str
    spec: SweepSpec
    state: SweepState = SweepState.RUNNING
    stop: StopCause | None = None
    """Why no more trials begin, where that was not the plan."""

    def history_of(self, number: int, trials: Sequence[Trial]) -> list[Trial]:
        """Return what a trial learns from: all but the newest so many before it as run at once."""
        return [each for each in trials if each.number <= number - self.spec.concurrency]


@dataclass(frozen=True)
class Decision:
    sweep: Sweep
    trials: tuple[Trial, ...] = ()
    """Trials that are new or changed."""
    messages: tuple[Message, ...] = ()


def submit(command: SubmitSweep, existing: Sweep | None, *, now: datetime) -> Decision:
    """Take the sweep. Raises Refused."""
    for param in ("sweep_id", "dataset_id"):
        value = getattr(command, param)
        if re.fullmatch(LABEL, value) is None:
            message = f"{param}: found {value[:80]!r}, expected at most 40 of a-z, 0-9 and -, with no - at either end"
            raise Refused(f"bad_{param}", message, param=param)
    if existing is not None:
        raise Refused("sweep_exists", f"sweep {command.sweep_id} exists already", param="sweep_id")
    if refusal := check_sweep(command.spec):
        raise Refused(refusal.code, f"spec.{refusal.message}", param=f"spec.{refusal.param}")
    sweep = Sweep(command.sweep_id, command.tenant, command.dataset_id, command.spec)
    fact = SweepSubmitted(
        sweep_id=sweep.id,
        tenant=sweep.tenant,
        dataset_id=sweep.dataset_id,
        spec=sweep.spec,
        submitted_at=now,
    )
    return Decision(sweep, messages=(fact,))


def cancel(sweep: Sweep | None, sweep_id: str, tenant: str, trials: Sequence[Trial]) -> Decision:
    """End the sweep for its owner. Raises Refused."""
    if sweep is None or sweep.tenant != tenant:
        message = f"sweep {sweep_id} is not known to tenant {tenant}"
        raise Refused("unknown_sweep", message, param="sweep_id")
    if sweep.state in ENDED:
        raise Refused("too_late", f"CancelSweep: sweep {sweep.id} is {sweep.state} already", param="sweep_id")
    return _stop(sweep, StopCause.USER, trials)


def next_number(sweep: Sweep, trials: Sequence[Trial]) -> int | None:
    """Return the number of the trial that begins now; None where none does."""
    number = len(trials)
    if sweep.state is not SweepState.RUNNING or number >= sweep.spec.most_trials:
        return None
    if sum(each.is_open for each in trials) >= sweep.spec.concurrency:
        return None
    if sweep.spec.looks_back and not all(each.is_decided for each in sweep.history_of(number, trials)):
        return None
    return number


def begin(sweep: Sweep, number: int, parameters: Parameters, trials: Sequence[Trial]) -> Decision:
    """Ask for the trial's job, unless an earlier trial has the same configuration."""
    job_id, spec = job_id_of(sweep.id, number), with_parameters(sweep.spec.job, parameters)
    digest = config_hash(spec, sweep.dataset_id)
    twin = next((each for each in trials if each.config_hash == digest), None)
    trial = Trial(sweep.id, number, job_id, parameters, digest)
    fact = TrialSubmitted(
        sweep_id=sweep.id,
        tenant=sweep.tenant,
        number=number,
        job_id=job_id,
        parameters=parameters,
        config_hash=digest,
        duplicate_of=twin.number if twin else None,
    )
    if twin is not None:
        message = f"the configuration of trial {twin.number}"
        twice = replace(trial, is_open=False, duplicate_of=twin.number)
        return _decided(sweep, twice, TrialState.DUPLICATE, message=message, before=(fact,))
    of_sweep = spec.model_copy(update={"trial": TrialOf(sweep_id=sweep.id, number=number)})
    command = SubmitJob(job_id=job_id, tenant=sweep.tenant, dataset_id=sweep.dataset_id, spec=of_sweep)
    return Decision(sweep, (trial,), (fact, command))


def follow(sweep: Sweep, trial: Trial, news: JobNews, trials: Sequence[Trial]) -> Decision:
    """Take in news of the trial's job; what follows for the trial alone."""
    heard = _heard(sweep.spec, trial, news)
    match news:
        case JobSucceeded() | JobFailed() | JobCancelled():
            heard = replace(heard, is_open=False)
        case CommandRefused() if _is_refused(news):
            heard = replace(heard, is_open=False)
    if heard.is_decided:
        return Decision(sweep, (heard,))
    match news:
        case JobFailed() | CommandRefused() if not heard.is_open:
            return _decided(sweep, heard, TrialState.FAILED, message=news.message)
        case JobCancelled():
            return _decided(sweep, heard, TrialState.CANCELLED, message=f"cancelled ({news.reason})")
    if pruned := _pruned(sweep, heard, trials):
        return pruned
    # All bundles of an attempt come in their order: with the last one, all are heard at which it might be pruned.
    is_known = sweep.spec.pruning is None or heard.num_steps is not None
    if heard.is_trained and heard.is_measured and is_known:
        return _completed(sweep, heard)
    return Decision(sweep, (heard,))


def _pruned(sweep: Sweep, trial: Trial, trials: Sequence[Trial]) -> Decision | None:
    """End the trial at the first of its bundles that the rule refuses, however late it is heard, though its job may
    have completed meanwhile; None where the rule refuses none.
    """
    if sweep.spec.pruning is None:
        return None
    history = sweep.history_of(trial.number, trials)
    for at in trial.as_measured:
        if reason := why_pruned(sweep.spec, at, history):
            stop = CancelJob(job_id=trial.job_id, tenant=sweep.tenant, reason="prune")
            return _decided(
                sweep, at, TrialState.PRUNED, valid_loss=at.lowest_loss, message=reason, before=(stop,)
            )
    return None


def _heard(spec: SweepSpec, trial: Trial, news: JobNews) -> Trial:
    match news:
        case JobQueued():
            return replace(trial, num_steps=news.num_steps)
        case JobEvaluating():
            return replace(trial, is_trained=True, best_valid_loss=news.best_valid_loss)
        case CheckpointWritten() if not trial.is_decided:
            return _with_bundle(spec, trial, news)
    return trial


def _with_bundle(spec: SweepSpec, trial: Trial, written: CheckpointWritten) -> Trial:
    """Losses are compared that were measured on the same texts: on all where the recipe asks for it."""
    full, some = written.metrics.get("full_valid_loss"), written.metrics.get("valid_loss")
    if written.kind is BundleKind.FINAL:
        return replace(trial, is_measured=True, final_loss=some if full is None else full)
    loss = full if spec.job.recipe.has_validations else some
    step = written.bundle.step
    if loss is None or step in dict(trial.losses):
        return trial
    return replace(trial, losses=tuple(sorted((*trial.losses, (step, loss)))))


def _is_refused(news: CommandRefused) -> bool:
    """Whether the job does not exist; a submission that came twice is refused too."""
    return news.command == SubmitJob.type and news.code != "job_exists"


def _completed(sweep: Sweep, trial: Trial) -> Decision:
    loss = trial.final_loss if trial.best_valid_loss is None else trial.best_valid_loss
    if loss is None:
        return _decided(sweep, trial, TrialState.FAILED, message="its last bundle has no validation loss")
    return _decided(sweep, trial, TrialState.COMPLETED, valid_loss=loss)


def _decided(
    sweep: Sweep,
    trial: Trial,
    state: TrialState,
    *,
    valid_loss: float | None = None,
    message: str = "",
    before: tuple[Message, ...] = (),
) -> Decision:
    fact = TrialEnded(
        sweep_id=sweep.id,
        tenant=sweep.tenant,
        number=trial.number,
        job_id=trial.job_id,
        state=state,
        valid_loss=valid_loss,
        message=message,
    )
    return Decision(
        sweep, (replace(trial, state=state, valid_loss=valid_loss, message=message),), (*before, fact)
    )


def limit(sweep: Sweep, trials: Sequence[Trial], spent: Decimal) -> Decision | None:
    """Return how the sweep is stopped at its budget, or at too many failures; None where it continues."""
    if sweep.state is not SweepState.RUNNING:
        return None
    if sweep.spec.max_cost is not None and spent >= sweep.spec.max_cost:
        return _stop(sweep, StopCause.BUDGET, trials)
    if sum(each.state is TrialState.FAILED for each in trials) >= sweep.spec.max_failed_trials:
        return _stop(sweep, StopCause.FAILURES, trials)
    return None


def _stop(sweep: Sweep, cause: StopCause, trials: Sequence[Trial]) -> Decision:
    """Trials that run are cancelled, once: what is pruned is stopping already."""
    running = [each for each in trials if each.is_open and not each.is_decided]
    is_first = sweep.state is SweepState.RUNNING
    reason: Literal["user", "budget"] = "budget" if cause is StopCause.BUDGET else "user"
    commands = [CancelJob(job_id=each.job_id, tenant=sweep.tenant, reason=reason) for each in running]
    stopping = replace(sweep, state=SweepState.STOPPING, stop=cause)
    fact = SweepStopping(sweep_id=sweep.id, tenant=sweep.tenant, cause=cause, message=_why(stopping))
    return Decision(stopping, messages=(fact, *(commands if is_first else ())))


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """Return the trial of the lowest loss among those that were trained to their end, the earliest of equal ones."""
    trained = [each for each in trials if each.state is TrialState.COMPLETED and each.valid_loss is not None]
    return min(trained, key=lambda each: (each.valid_loss, each.number), default=None)


def conclude(sweep: Sweep, trials: Sequence[Trial], spent: Decimal) -> Decision | None:
    """Return the end of the sweep once all trials have ended; None before."""
    if sweep.state in ENDED or any(each.is_open or not each.is_decided for each in trials):
        return None
    if sweep.state is SweepState.RUNNING and len(trials) < sweep.spec.most_trials:
        return None
    best = best_of(trials)
    state = SweepState.SUCCEEDED if best else SweepState.FAILED
    if sweep.stop is StopCause.USER:
        state = SweepState.CANCELLED
    fact = SweepEnded(
        sweep_id=sweep.id,
        tenant=sweep.tenant,
        state=state,
        best=best.number if best else None,
        best_valid_loss=best.valid_loss if best else None,
        num_trials=len(trials),
        cost=spent,
        message=_ending(sweep, best),
    )
    return Decision(replace(sweep, state=state), messages=(fact,))


def _why(sweep: Sweep) -> str:
    match sweep.stop:
        case StopCause.USER:
            return "cancelled"
        case StopCause.BUDGET:
            return f"the budget of {sweep.spec.max_cost} US dollars is spent"
        case StopCause.FAILURES:
            return f"{sweep.spec.max_failed_trials} trials have failed"
        case None:
            return "all trials have ended"


def _ending(sweep: Sweep, best: Trial | None) -> str:
    if best is None:
        return f"{_why(sweep)}; none was trained to its end"
    return f"{_why(sweep)}; trial {best.number} is the best one, validation loss {best.valid_loss:.4g}"
