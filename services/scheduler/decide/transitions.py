"""The table of the state machine: what each state waits for, strongest first.

A fact is stored whatever the state (see `facts`); then the rows of the present state are tried, and after a
move those of the next one, until none applies. So it does not matter which of two facts comes first.
"""

from collections.abc import Callable, Mapping

from schemas.lifecycle import JobState
from services.scheduler.decide import admission, attempt, ending, evaluation
from services.scheduler.decide.decision import Decision, View
from services.scheduler.model import Job

Row = Callable[[Job, View], Decision | None]
"""What follows from all that is known, or None where something is missing."""

ROWS: Mapping[JobState, tuple[Row, ...]] = {
    JobState.VALIDATING: (admission.base_stale, admission.dataset_unusable, admission.dataset_ready),
    JobState.QUEUED: (admission.base_stale, admission.dataset_deleted),
    JobState.PROVISIONING: (
        attempt.not_provisioned,
        attempt.failed,
        attempt.preempted,
        attempt.final_corrupt,
        attempt.stopped_unasked,
        attempt.started,
    ),
    JobState.RUNNING: (
        attempt.completed,
        attempt.failed,
        attempt.preempted,
        attempt.final_corrupt,
        attempt.stopped_unasked,
        attempt.ended_unheard,
    ),
    JobState.STOPPING: (attempt.completed, ending.noticed, ending.excused, ending.over),
    JobState.PAUSED: (admission.dataset_deleted,),
    JobState.EVALUATING: (evaluation.not_asked, evaluation.not_passed, evaluation.passed),
    JobState.SUCCEEDED: (),
    JobState.FAILED: (),
    JobState.CANCELLED: (),
}


def follow(decision: Decision, view: View) -> Decision:
    """Apply rows until none does."""
    while (step := _first_that_applies(decision.job, view)) is not None:
        decision = decision.then(step)
    return decision


def _first_that_applies(job: Job, view: View) -> Decision | None:
    decisions = (row(job, view) for row in ROWS[job.state])
    return next((decision for decision in decisions if decision is not None), None)
