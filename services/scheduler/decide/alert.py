"""What a job does when an alert about its attempt is raised."""

from datetime import timedelta

from schemas.alert import AlertRaised
from schemas.job import PauseReason, StopReason
from services.scheduler.decide.commands import stop_attempt
from services.scheduler.decide.decision import Decision, View
from services.scheduler.model import ATTEMPT_OPEN, Job, Stop


def on_alert_raised(job: Job, fact: AlertRaised, view: View) -> Decision:
    """Stop the attempt where the job asks for it; an alert about an earlier attempt stops no later one."""
    action = job.spec.alert_actions.action_of(fact.rule)
    if action not in ("pause", "stop"):
        return Decision(job, ignored=f"alert {fact.rule.value}: {action}")
    if job.state not in ATTEMPT_OPEN or job.attempt != fact.attempt:
        return Decision(job, ignored=f"alert {fact.rule.value} about attempt {fact.attempt}, which is over")
    deadline = view.now + timedelta(seconds=job.grace_seconds)
    message = f"alert {fact.rule.value}: {fact.message}"
    if action == "pause":
        stop = Stop(StopReason.PAUSE, view.now, deadline, message, pause_reason=PauseReason.ALERT)
    else:
        stop = Stop(StopReason.CANCEL, view.now, deadline, message, by_alert=True)
    return stop_attempt(job, stop, view)
