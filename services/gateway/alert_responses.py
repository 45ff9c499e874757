"""What routes of alerts answer. See `responses`."""

from typing import Literal

from schemas.alert import AlertAction, AlertRule, AlertUnit
from schemas.base import Count, Step
from services.gateway.responses import Answer, Resource, Time


class AlertMute(Resource):
    """A rule that nobody is notified by."""

    object: Literal["alert.mute"]
    created_at: Time
    rule: AlertRule
    job_id: str | None
    """The job whose alerts are muted; null: all of the tenant's."""
    until: Time | None
    """When it ends; null: it does not end by itself."""
    muted_by: str
    """The key that asked for it."""


class UnmutedRule(Answer):
    id: str
    object: Literal["alert.mute"]
    deleted: bool


class Alert(Resource):
    object: Literal["alert"]
    created_at: Time
    """When it was raised."""
    cleared_at: Time | None
    """None while it is open."""
    job_id: str
    attempt: Count
    rule: AlertRule
    episode: Count
    """How many times the rule was raised in the attempt, this time included."""
    step: Step
    value: float | None
    """Number that the rule went by."""
    limit: float | None
    """Limit that the number passed."""
    unit: AlertUnit | None
    """What both are in; null where there is no number, and of alerts of an older release."""
    action: AlertAction
    """What the job's `alerts` say of the rule."""
    message: str
    cleared_by: str
    """Why it was cleared; empty while it is open."""
    was_muted: bool
    """Whether nobody was notified when it was raised."""
    mute: AlertMute | None
    """The mute that holds back its notices now. Null of rules that pause or stop the job: those are never muted."""
