"""Loss on the examples set aside for validation."""

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import add

import torch

from schemas.base import FailureClass
from schemas.training import BundleMetrics
from services.trainer_agent.protocol import Validated
from services.trainer_agent.training.failures import TrainingFailed
from services.trainer_agent.training.plan import StepPlan
from services.trainer_agent.training.quantized import as_served
from services.trainer_agent.training.reference import compared_on_the_base_at_hand
from services.trainer_agent.training.run import Run
from services.trainer_agent.training.stop import StopHeard, StopRequest
from shared.failpoints import failpoint

MOST_WINDOWS = 16
"""Most windows looked at for a periodic bundle, unless the recipe names the steps at which all are; the final one
looks at all."""


def validate(run: Run, stop: StopRequest) -> bool:
    """Measure, remember and report, at a step that the recipe names. False where a stop is heard meanwhile: nothing
    is remembered then, and whoever continues from here measures again.

    Raises: TrainingFailed(user) where there is nothing to measure on.
    """
    if not len(run.dataset.validation):
        message = "the dataset has no validation rows, and the recipe goes by the loss on them"
        raise TrainingFailed(FailureClass.USER, message)
    metrics = metrics_now(run, stop, full=True)
    if metrics.full_valid_loss is None:
        return False
    early_stopping = run.order.recipe.early_stopping
    run.validations = run.validations.after(run.step, metrics.full_valid_loss, early_stopping)
    if run.is_complete:
        metrics = metrics.model_copy(update=_on_the_served_base(run, stop))
    run.measured = metrics
    run.reports.send(Validated(step=run.step, metrics=metrics, is_last=run.is_complete))
    failpoint("trainer.validation.end")
    return True


def metrics_at_end(run: Run, stop: StopRequest) -> BundleMetrics:
    metrics = metrics_now(run, stop, full=True)
    if metrics.full_valid_loss is None:
        return metrics
    return metrics.model_copy(update=_on_the_served_base(run, stop))


def metrics_now(run: Run, stop: StopRequest, *, full: bool) -> BundleMetrics:
    """Measure now. There is no validation loss without validation rows, or where a stop is heard meanwhile."""
    metrics = BundleMetrics(train_loss=run.last_loss)
    num_windows = len(run.dataset.validation)
    if not num_windows:
        return metrics
    some = _spread(num_windows, MOST_WINDOWS)
    others = sorted(set(range(num_windows)) - set(some)) if full else []
    try:
        sums = _sums(run, some, stop)
        all_sums = sums + _sums(run, others, stop) if others else sums
    except StopHeard:
        return metrics
    finally:
        run.network.train()
    loss, _ = sums.means(run)
    full_loss, numbers = all_sums.means(run)
    measured = {name: value for name, value in numbers.items() if name in BundleMetrics.model_fields}
    if full:
        measured["full_valid_loss"] = full_loss
    return metrics.model_copy(
        update={"valid_loss": loss, **measured, **_perplexities(run, full_loss, full=full)}
    )


def _on_the_served_base(run: Run, stop: StopRequest) -> dict[str, float]:
    """Return for a run on a quantised base the loss on some windows on the base as it is served; else nothing."""
    if run.quantized is None:
        return {}
    some = _spread(len(run.dataset.validation), MOST_WINDOWS)
    served_base = as_served(run.network.causal_lm, run.quantized)
    try:
        with served_base, compared_on_the_base_at_hand(run, some, stop):
            served, _ = _sums(run, some, stop).means(run)
    except StopHeard:
        return {}
    finally:
        run.network.train()
    return {"served_valid_loss": served}


def _perplexities(run: Run, loss: float, *, full: bool) -> dict[str, float]:
    if not run.objective.is_of_tokens:
        return {}
    start = run.start_valid_loss if full else None
    return {"perplexity": _exp(loss)} | ({} if start is None else {"start_perplexity": _exp(start)})


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < math.log(sys.float_info.max) else math.inf


def _spread(length: int, most: int) -> Sequence[int]:
    """Return at most so many indices, evenly spread."""
    return range(0, length, -(-length // most))


@dataclass(frozen=True)
class _Sums:
    """Sums over windows: of the losses, and of what else the method measures."""

    sums: tuple[float, ...]
    num_terms: int

    def __add__(self, other: "_Sums") -> "_Sums":
        return _Sums(tuple(map(add, self.sums, other.sums)), self.num_terms + other.num_terms)

    def means(self, run: Run) -> tuple[float, dict[str, float]]:
        return run.objective.means(list(self.sums), self.num_terms)


def _sums(run: Run, indices: Iterable[int], stop: StopRequest) -> _Sums:
    objective, windows = run.objective, tuple(run.dataset.validation[index] for index in indices)
    sums = [0.0] * (1 + len(objective.numbers))
    run.network.eval()
    with torch.no_grad():
        for micro_batch in run.micro_batches(StepPlan(windows), stop):
            sums = list(map(add, sums, objective.terms(run.network, micro_batch, run.device).sums))
            failpoint("trainer.validation.microbatch")
    return _Sums(tuple(run.world.total(sums)), objective.num_terms(windows))
