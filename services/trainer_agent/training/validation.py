"""Loss on the examples set aside for validation."""

import math
import sys
from collections.abc import Sequence
from operator import add

import torch

from schemas.training import BundleMetrics
from services.trainer_agent.training.dataset import Window
from services.trainer_agent.training.plan import StepPlan
from services.trainer_agent.training.quantized import as_served
from services.trainer_agent.training.run import Run
from services.trainer_agent.training.stop import StopHeard, StopRequest
from shared.failpoints import failpoint

MOST_WINDOWS = 16
"""Looked at for a periodic bundle; the final one looks at all."""


def metrics_now(run: Run, stop: StopRequest, *, full: bool) -> BundleMetrics:
    """Without a validation loss where there is nothing to validate on, or a stop is heard meanwhile."""
    metrics = BundleMetrics(train_loss=run.last_loss)
    windows = run.dataset.validation
    if not len(windows):
        return metrics
    chosen = [windows[index] for index in _spread(len(windows), len(windows) if full else MOST_WINDOWS)]
    try:
        loss, numbers = _means(run, chosen, stop)
    except StopHeard:
        return metrics
    finally:
        run.network.train()
    measured = {name: value for name, value in numbers.items() if name in BundleMetrics.model_fields}
    if not full:
        return metrics.model_copy(update={"valid_loss": loss, **measured})
    others = _perplexities(run, loss) | _on_both_bases(run, stop) | measured
    return metrics.model_copy(update={"full_valid_loss": loss, **others})


def _on_both_bases(run: Run, stop: StopRequest) -> dict[str, float]:
    """Of a run on a quantised base: some windows on it, and on the base as it is served."""
    if run.quantized is None:
        return {}
    windows = run.dataset.validation
    some = [windows[index] for index in _spread(len(windows), MOST_WINDOWS)]
    try:
        quantized, _ = _means(run, some, stop)
        with as_served(run.network.causal_lm, run.quantized):
            served, _ = _means(run, some, stop)
    except StopHeard:
        return {}
    finally:
        run.network.train()
    return {"valid_loss": quantized, "served_valid_loss": served}


def _perplexities(run: Run, loss: float) -> dict[str, float]:
    if not run.objective.reports_perplexity:
        return {}
    start = {} if run.start_valid_loss is None else {"start_perplexity": _exp(run.start_valid_loss)}
    return {"perplexity": _exp(loss), **start}


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < math.log(sys.float_info.max) else math.inf


def _spread(length: int, most: int) -> Sequence[int]:
    """At most so many indices, evenly spread."""
    return range(0, length, -(-length // most))


def _means(run: Run, windows: Sequence[Window], stop: StopRequest) -> tuple[float, dict[str, float]]:
    """Of the loss, and of what else the method measures."""
    objective = run.objective
    sums = [0.0] * (1 + len(objective.numbers))
    run.network.eval()
    with torch.no_grad():
        for micro_batch in run.micro_batches(StepPlan(tuple(windows)), stop):
            sums = list(map(add, sums, objective.terms(run.network, micro_batch, run.device).sums))
            failpoint("trainer.validation.microbatch")
    return objective.means(run.world.total(sums), objective.num_terms(windows))
