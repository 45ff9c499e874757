"""The states of a job as `job.events` has them: what may follow what, and which state the job is in after it."""

from collections.abc import Mapping
from enum import StrEnum

from schemas.job import (
    JobCancelled,
    JobEvaluating,
    JobFact,
    JobFailed,
    JobPaused,
    JobQueued,
    JobRequeued,
    JobRunning,
    JobScheduled,
    JobStageCompleted,
    JobStopping,
    JobSubmitted,
    JobSucceeded,
)


class JobState(StrEnum):
    VALIDATING = "validating"  # its dataset is not ready yet
    QUEUED = "queued"  # waits for capacity
    PROVISIONING = "provisioning"  # an attempt has begun, its gang is not complete
    RUNNING = "running"  # the gang trains
    STOPPING = "stopping"  # saves, uploads, gives its nodes back
    PAUSED = "paused"  # waits for a person
    EVALUATING = "evaluating"  # trained; the gate evaluates the model, then it is registered and deployed
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


_FROM_THE_QUEUE: frozenset[type[JobFact]] = frozenset({JobScheduled, JobPaused, JobFailed, JobCancelled})

NEXT: Mapping[type[JobFact], frozenset[type[JobFact]]] = {
    JobSubmitted: frozenset({JobQueued, JobPaused, JobFailed, JobCancelled}),
    JobQueued: _FROM_THE_QUEUE,
    JobRequeued: _FROM_THE_QUEUE,
    JobStageCompleted: _FROM_THE_QUEUE,
    JobScheduled: frozenset({JobRunning, JobStopping, JobQueued, JobRequeued, JobFailed}),
    JobRunning: frozenset({JobStopping, JobStageCompleted, JobEvaluating}),
    # Repeated when the reason grows stronger or the deadline earlier.
    JobStopping: frozenset(
        {JobStopping, JobStageCompleted, JobEvaluating, JobPaused, JobRequeued, JobFailed, JobCancelled}
    ),
    JobPaused: frozenset({JobSubmitted, JobQueued, JobFailed, JobCancelled}),
    JobEvaluating: frozenset({JobSucceeded, JobCancelled}),
    JobSucceeded: frozenset(),
    JobFailed: frozenset(),
    JobCancelled: frozenset(),
}
FIRST = JobSubmitted
STATE_AFTER: Mapping[type[JobFact], JobState] = {
    JobSubmitted: JobState.VALIDATING,
    JobQueued: JobState.QUEUED,
    JobRequeued: JobState.QUEUED,
    JobStageCompleted: JobState.QUEUED,
    JobScheduled: JobState.PROVISIONING,
    JobRunning: JobState.RUNNING,
    JobStopping: JobState.STOPPING,
    JobPaused: JobState.PAUSED,
    JobEvaluating: JobState.EVALUATING,
    JobSucceeded: JobState.SUCCEEDED,
    JobFailed: JobState.FAILED,
    JobCancelled: JobState.CANCELLED,
}
STATES_AFTER: Mapping[JobState, frozenset[JobState]] = {
    state: frozenset(
        STATE_AFTER[later]
        for fact, following in NEXT.items()
        if STATE_AFTER[fact] is state
        for later in following
    )
    - {state}
    for state in JobState
}
"""The states that a job may change to from each state."""
TERMINAL = frozenset(state for state, following in STATES_AFTER.items() if not following)
