"""alert.commands and run.alerts: what looks wrong with an attempt while it trains, what a job does about it, and what
is muted."""

from datetime import datetime
from enum import StrEnum
from operator import not_
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from schemas.base import (
    Attempt,
    Count,
    JobId,
    Message,
    Reference,
    Spec,
    SpendingLimit,
    Step,
    TenantName,
    is_none,
)


class AlertRule(StrEnum):
    """What a run is watched for. Each has a field of its name in AlertsSpec."""

    LOSS_SPIKE = "loss_spike"  # the loss leaves its noise upwards for a few steps
    DIVERGENCE = "divergence"  # the loss stays above the best level that it had
    PLATEAU = "plateau"  # the loss has not fallen for half of the run, while the learning rate is high
    NOT_FINITE = "not_finite"  # a number is not finite, or a gradient is about to overflow
    GRADIENT_EXPLOSION = "gradient_explosion"  # the gradient's norm is many times its usual size
    STALL = "stall"  # no step for much longer than steps take
    MEMORY_LEAK = "memory_leak"  # the peak of memory grows steadily
    LOW_UTILIZATION = "low_utilization"  # devices wait, or the run has become much slower
    COST_ABOVE_PLAN = "cost_above_plan"  # at this speed the job will cost more than expected
    CHECKPOINT_OVERDUE = "checkpoint_overdue"  # no checkpoint for three intervals
    VALIDATION_RISE = "validation_rise"  # the validation loss rises again


AlertAction = Literal["off", "notify", "pause", "stop"]
"""What an alert does: nothing, and it is not raised; an event; the event and a pause, as PauseJob; the event and the
end of the job, as CancelJob. The last two save a checkpoint first."""


AlertUnit = Literal[
    "loss", "gradient_norm", "fraction", "seconds", "bytes", "tokens_per_second", "us_dollars"
]
"""What value and limit of an alert are in; a fraction of 1 is all."""


class AlertsSpec(Spec):
    """What each alert does. Nothing here changes what is trained."""

    loss_spike: AlertAction = "notify"
    """The loss leaves its noise upwards for several steps."""
    divergence: AlertAction = "notify"
    """The loss stays above the best level that it had."""
    plateau: AlertAction = "notify"
    """The loss has not fallen for half of the run, while the learning rate is high."""
    not_finite: AlertAction = "notify"
    """A loss or gradient is not a finite number, or about to become one."""
    gradient_explosion: AlertAction = "notify"
    """The norm of the gradient is many times its usual size."""
    stall: AlertAction = "notify"
    """No step for much longer than steps take."""
    memory_leak: AlertAction = "notify"
    """The peak of memory grows steadily."""
    low_utilization: AlertAction = "notify"
    """Devices wait, or the run has become much slower."""
    cost_above_plan: AlertAction = "notify"
    """At this speed the job will cost more than `expected_cost`."""
    checkpoint_overdue: AlertAction = "notify"
    """No checkpoint for three intervals."""
    validation_rise: AlertAction = "notify"
    """The validation loss rises again."""
    expected_cost: SpendingLimit | None = None
    """US dollars that the job is planned to cost. None: there is no plan, and no alert about it."""

    def action_of(self, rule: AlertRule) -> AlertAction:
        action: AlertAction = getattr(self, rule.value)
        return action


class AlertFact(Message):
    keyed_by = "job_id"
    job_id: JobId
    tenant: TenantName
    attempt: Attempt
    rule: AlertRule
    """What the run is watched for."""
    episode: Annotated[Count, Field(ge=1)]
    """How many times the rule was raised in this attempt, this time included."""
    step: Step
    message: str
    """What was measured and expected, for people."""
    is_muted: Annotated[bool, Field(exclude_if=not_)] = False
    """Whether a person has muted the rule, so that nobody is to be notified. Never of a rule that pauses or stops the
    job; of what is cleared, whether it was raised so."""


class AlertRaised(AlertFact):
    """Something looks wrong. Raised once, and not again until it is cleared."""

    value: float | None = None
    """Number that the rule went by; None where it is not finite, or there is none."""
    limit: float | None = None
    """Limit that the number passed; None where there is none."""
    unit: Annotated[AlertUnit | None, Field(exclude_if=is_none)] = None
    """What both are in. None where there is no number, and in older events."""


class AlertCleared(AlertFact):
    """What was raised has passed, or its attempt ends."""


class MuteMessage(Message):
    keyed_by = "tenant"
    tenant: TenantName
    rule: AlertRule
    """The rule that is muted."""
    job_id: JobId | None = None
    """The job whose alerts are muted; None: all of the tenant's."""


class MuteAlerts(MuteMessage):
    """Notify nobody of alerts by this rule, until a time or for good.

    They are raised and cleared as before, and the job does about them what it would do.
    AlertsMuted answers, or CommandRefused. Muted again, the newest command counts.
    """

    until: AwareDatetime | None = None
    """When it ends; None: it does not end by itself."""
    muted_by: Reference
    """Who asks for it."""


class UnmuteAlerts(MuteMessage):
    """Notify of alerts by this rule again. AlertsUnmuted answers, or CommandRefused."""

    unmuted_by: Reference
    """Who asks for it."""


class AlertsMuted(MuteMessage):
    """Nobody is notified of alerts by this rule."""

    until: datetime | None
    """When it ends; None: it does not end by itself."""
    muted_by: str
    """Who asked for it."""


class AlertsUnmuted(MuteMessage):
    """A mute was ended before its time. One that ends by its time has no fact."""

    unmuted_by: str
    """Who asked for it."""
