"""The charts of a job, in which of them the cause of an alert is seen, and what is marked on their curves. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from schemas.alert import AlertRule
from services.gateway.alerts import AlertRow
from services.gateway.model import JobEvent
from services.gateway.page import formats
from services.gateway.page.views import words_of

Metric = Literal["loss", "valid_loss", "learning_rate", "grad_norm", "tokens_per_second", "memory_bytes"]
CHARTS: Mapping[Metric, Mapping[str, str]] = {
    "loss": {"title": "Training loss", "unit": "nats per token", "smooth": "0.6", "scale": "linear"},
    "valid_loss": {"title": "Validation loss", "unit": "nats per token", "smooth": "0", "scale": "linear"},
    "learning_rate": {"title": "Learning rate", "unit": "per step", "smooth": "0", "scale": "linear"},
    "grad_norm": {"title": "Gradient norm", "unit": "before clipping", "smooth": "0.6", "scale": "log"},
    "tokens_per_second": {"title": "Speed", "unit": "tokens/s", "smooth": "0", "scale": "linear"},
    "memory_bytes": {"title": "Memory", "unit": "GiB", "smooth": "0", "scale": "linear"},
}
Axis = Literal["step", "time", "tokens"]
AXES: Mapping[Axis, str] = {"step": "steps", "time": "time since training began", "tokens": "tokens"}
"""What curves are drawn over."""
METRICS: Mapping[AlertRule, tuple[Metric, ...]] = {
    AlertRule.LOSS_SPIKE: ("loss",),
    AlertRule.DIVERGENCE: ("loss",),
    AlertRule.PLATEAU: ("loss", "learning_rate"),
    AlertRule.NOT_FINITE: ("loss", "grad_norm"),
    AlertRule.GRADIENT_EXPLOSION: ("grad_norm",),
    AlertRule.STALL: ("tokens_per_second",),
    AlertRule.MEMORY_LEAK: ("memory_bytes",),
    AlertRule.LOW_UTILIZATION: ("tokens_per_second",),
    AlertRule.COST_ABOVE_PLAN: ("tokens_per_second",),
    AlertRule.CHECKPOINT_OVERDUE: ("tokens_per_second",),
    AlertRule.VALIDATION_RISE: ("valid_loss", "loss"),
}
"""Curves in which the cause of an alert is seen."""
TYPES = ("TrainingResumed", "TrainingStopped", "TrainingFailed")
"""Events that are marked."""
MARKED_ALERTS = 50

Mark = dict[str, JsonValue]
"""Where it is, its kind and its words; `metrics`: the curves that it is on, where it is not on all of them."""


@dataclass(frozen=True)
class Marks:
    marks: tuple[Mark, ...]
    num_open: int
    """Alerts that are marked."""
    num_cleared: int
    has_more: bool
    """Whether there are alerts that are not marked."""

    @property
    def num_alerts(self) -> int:
        return self.num_open + self.num_cleared


def marks(events: Sequence[JobEvent], open_alerts: Sequence[AlertRow], cleared: Sequence[AlertRow]) -> Marks:
    """Mark events of `TYPES`, and as many alerts as have room: open ones before cleared ones. Of both the newest come
    first."""
    all_alerts = [*open_alerts, *cleared]
    marked = all_alerts[:MARKED_ALERTS]
    num_open = min(len(open_alerts), MARKED_ALERTS)
    return Marks(
        (*map(mark_of_event, events), *map(mark_of_alert, marked)),
        num_open,
        len(marked) - num_open,
        len(all_alerts) > len(marked),
    )


def mark_of_event(event: JobEvent) -> Mark:
    """Mark where an attempt ended, or was resumed with its certificate."""
    certificate = event.data.get("certificate")
    kind, step = (
        ("resumed", certificate["step"])
        if isinstance(certificate, dict)
        else ("stopped", event.data["last_step"])
    )
    return {"step": step, "kind": kind, "text": event.message, "at": event.created_at.timestamp()}


def mark_of_alert(row: AlertRow) -> Mark:
    kind = "open" if row.cleared_at is None else "cleared"
    text = f"{kind} alert, {words_of(row.rule)} at step {formats.whole(row.step)}: {row.message}"
    at = {"step": row.step, "at": row.raised_at.timestamp()}
    return {**at, "kind": kind, "text": text, "metrics": [*METRICS[row.rule]]}
