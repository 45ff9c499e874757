"""Loss on the examples set aside for validation."""

from collections.abc import Sequence

import torch

from services.trainer_agent.training.dataset import Window
from services.trainer_agent.training.plan import StepPlan
from services.trainer_agent.training.run import Run
from services.trainer_agent.training.tensors import inputs_of

MOST_WINDOWS = 16
"""Looked at for a periodic bundle; the final one looks at all."""


def metrics_now(run: Run, *, full: bool) -> dict[str, float]:
    metrics = {} if run.last_loss is None else {"train_loss": run.last_loss}
    windows = run.dataset.validation
    if len(windows):
        chosen = [windows[index] for index in _spread(len(windows), len(windows) if full else MOST_WINDOWS)]
        metrics["full_valid_loss" if full else "valid_loss"] = _mean_loss(run, chosen)
    return metrics


def _spread(length: int, most: int) -> Sequence[int]:
    """At most so many indices, evenly spread."""
    return range(0, length, -(-length // most))


def _mean_loss(run: Run, windows: Sequence[Window]) -> float:
    total, count = 0.0, 0
    run.network.eval()
    with torch.no_grad():
        for micro_batch in run.share_of(StepPlan(tuple(windows))):
            losses = run.network(inputs_of(micro_batch, run.device))
            total += float(losses.sum(dtype=torch.float64))
            count += len(losses)
    run.network.train()
    total_loss, num_targets = run.world.total([total, count])
    return total_loss / max(1.0, num_targets)
