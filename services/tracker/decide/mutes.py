"""Mutes: which rules nobody is notified by, until when, and who asked for it."""

from dataclasses import dataclass
from datetime import datetime

from schemas.alert import AlertRule, AlertsMuted, AlertsUnmuted, MuteAlerts, UnmuteAlerts
from shared.errors import Refused

OF_ALL_JOBS = ""
MOST_OF_A_TENANT = 1_000


@dataclass(frozen=True)
class Mute:
    tenant: str
    rule: AlertRule
    job_id: str
    """OF_ALL_JOBS: of all that the tenant has."""
    until: datetime | None
    muted_by: str


@dataclass(frozen=True)
class Decision:
    mute: Mute
    fact: AlertsMuted


def mute(command: MuteAlerts, *, num_mutes: int, is_muted: bool, now: datetime) -> Decision:
    """Mute a rule, or change until when it is.

    num_mutes: how many of the tenant's have not ended. is_muted: whether this one is among them. Raises Refused.
    """
    if command.until is not None and command.until <= now:
        message = f"until: found {command.until:%Y-%m-%d %H:%M:%S} UTC, expected a time after {now:%Y-%m-%d %H:%M:%S}"
        raise Refused("until_is_past", message, param="until")
    if num_mutes >= MOST_OF_A_TENANT and not is_muted:
        message = f"found {num_mutes} mutes that have not ended, expected fewer than {MOST_OF_A_TENANT}"
        raise Refused("too_many_mutes", message)
    job_id = command.job_id or OF_ALL_JOBS
    muted = Mute(command.tenant, command.rule, job_id, command.until, command.muted_by)
    return Decision(muted, AlertsMuted(**command.model_dump()))


def unmute(command: UnmuteAlerts, *, is_muted: bool) -> AlertsUnmuted:
    """Raises Refused where there is nothing to end."""
    if not is_muted:
        of = f" of job {command.job_id}" if command.job_id else ""
        raise Refused("unknown_mute", f"rule {command.rule}{of} is not muted", param="rule")
    return AlertsUnmuted(**command.model_dump())
