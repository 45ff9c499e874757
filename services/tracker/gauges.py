"""Prometheus gauges of the training that runs now: the newest step of each attempt that holds nodes."""

from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import Gauge

from schemas.training import REWARDS, StepMetrics

NUMBERS = {
    "step": "Newest step of the job",
    "epoch": "Passes over the data, with fractions",
    "loss": "Mean over the loss tokens of the step, with dpo over its pairs",
    "learning_rate": "Learning rate of the step",
    "grad_norm": "Norm of the gradient before it was scaled down",
    "tokens_per_second": "Tokens per second over all devices",
    "memory_bytes": "Peak of the first process so far, bytes",
    "mfu": "Model FLOPs utilisation, 0 to 1, on a GPU",
    "device_utilization": "Share of the time in which the first process's device computed, 0 to 1",
    **dict.fromkeys(REWARDS, "Mean over the pairs of the step, with dpo"),
    "router_loss": "Load-balancing loss of a model with experts",
}
GAUGES = {
    number: Gauge(f"training_{number}", meaning, ["tenant", "job_id"]) for number, meaning in NUMBERS.items()
}


@dataclass(frozen=True)
class RunningStep:
    """The newest step of an attempt."""

    tenant: str
    job_id: str
    metrics: StepMetrics


def show(steps: Sequence[RunningStep]) -> None:
    """Show the metrics of these steps and no others: what has ended since has no value any more."""
    for number, gauge in GAUGES.items():
        gauge.clear()
        for step in steps:
            if (value := getattr(step.metrics, number)) is not None:
                gauge.labels(step.tenant, step.job_id).set(value)
