"""The states of a job as `job.events` has them: what may follow what, and which state the job is in after it."""

from collections.abc import Mapping

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
    JobStopping,
    JobSubmitted,
    JobSucceeded,
)

_FROM_THE_QUEUE: frozenset[type[JobFact]] = frozenset({JobScheduled, JobPaused, JobFailed, JobCancelled})

NEXT: Mapping[type[JobFact], frozenset[type[JobFact]]] = {
    JobSubmitted: frozenset({JobQueued, JobPaused, JobFailed, JobCancelled}),
    JobQueued: _FROM_THE_QUEUE,
    JobRequeued: _FROM_THE_QUEUE,
    JobScheduled: frozenset({JobRunning, JobStopping, JobQueued, JobRequeued, JobFailed}),
    JobRunning: frozenset({JobStopping, JobEvaluating}),
    # Said again when the reason grows stronger or the deadline earlier.
    JobStopping: frozenset({JobStopping, JobEvaluating, JobPaused, JobRequeued, JobFailed, JobCancelled}),
    JobPaused: frozenset({JobSubmitted, JobQueued, JobFailed, JobCancelled}),
    JobEvaluating: frozenset({JobSucceeded, JobCancelled}),
    JobSucceeded: frozenset(),
    JobFailed: frozenset(),
    JobCancelled: frozenset(),
}
FIRST = JobSubmitted
STATE_AFTER: Mapping[type[JobFact], str] = {
    JobSubmitted: "validating",
    JobQueued: "queued",
    JobRequeued: "queued",
    JobScheduled: "provisioning",
    JobRunning: "running",
    JobStopping: "stopping",
    JobPaused: "paused",
    JobEvaluating: "evaluating",
    JobSucceeded: "succeeded",
    JobFailed: "failed",
    JobCancelled: "cancelled",
}
TERMINAL = frozenset(STATE_AFTER[fact] for fact, later in NEXT.items() if not later)
