"""What a job does when its budget is reached."""

from datetime import timedelta

from schemas.cost import BudgetReached
from schemas.job import StopReason
from services.scheduler.decide.commands import stop_attempt
from services.scheduler.decide.decision import Decision, View
from services.scheduler.model import ATTEMPT_OPEN, Job, Stop


def on_budget_reached(job: Job, fact: BudgetReached, view: View) -> Decision:
    """Stop the attempt. One that is over may turn out to be free, so that the next one has the budget again."""
    if job.state not in ATTEMPT_OPEN or job.attempt != fact.attempt:
        return Decision(job, ignored=f"budget reached by attempt {fact.attempt}, which is over")
    deadline = view.now + timedelta(seconds=job.grace_seconds)
    return stop_attempt(job, Stop(StopReason.BUDGET, view.now, deadline, fact.message), view)
