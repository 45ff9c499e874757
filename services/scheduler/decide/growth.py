"""When an elastic job stops to continue on more nodes: where they have long been free and nobody waits for them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from schemas.job import StopReason
from services.scheduler.decide.candidate import Candidate
from services.scheduler.decide.commands import stop_attempt
from services.scheduler.decide.decision import Decision, View
from services.scheduler.decide.ledger import Booking, Ledger
from services.scheduler.decide.queue import allowed_pools, largest_that_starts
from services.scheduler.model import Job, Stop


@dataclass(frozen=True)
class ElasticAttempt:
    """A running attempt with fewer nodes than its job may have."""

    candidate: Candidate
    """Its job as it would wait in the queue."""
    pool: str
    booking: Booking


def could_have(
    attempts: Iterable[ElasticAttempt], waiting: Iterable[Candidate], ledger: Ledger, *, now: datetime
) -> Mapping[str, int]:
    """Return job -> nodes with which it could continue in its pool, for those that could have more than they have.

    waiting: one of each kind that is in the queue. A pool that could hold one of them gives nobody more.
    """
    asked_for = {pool.name for candidate in waiting for pool in allowed_pools(candidate, ledger)}
    sizes = {
        each.candidate.job_id: _size(each, ledger, now)
        for each in attempts
        if each.pool in ledger.by_name and each.pool not in asked_for
    }
    return {job_id: nodes for job_id, nodes in sizes.items() if nodes is not None}


def _size(attempt: ElasticAttempt, ledger: Ledger, now: datetime) -> int | None:
    own = attempt.booking
    if own not in ledger.by_name[attempt.pool].bookings:
        return None  # given back since it was read
    without = ledger.without_booking(ledger.by_name[attempt.pool], attempt.candidate.tenant, own)
    largest = largest_that_starts(attempt.candidate, without.by_name[attempt.pool], without, now)
    return largest.resources.nodes if largest and largest.resources.nodes > len(own.machines) else None


def is_worthwhile(job: Job, view: View) -> bool:
    """Return whether so much is left to train, by the pace of the attempt's verified bundles, that a stop pays."""
    run, newest, plan = job.present, job.resume, job.plan
    begins_at = job.stage.steps_before if job.stage else 0
    begun_at = run.resume.step if run.resume else begins_at
    if newest is None or plan is None or newest.step <= begun_at:
        return False
    elapsed: timedelta = view.now - run.scheduled_at
    left = begins_at + plan.num_steps - newest.step
    return elapsed * left / (newest.step - begun_at) > view.policy.grow_after


def grow(job: Job, nodes: int, view: View) -> Decision:
    """running -> stopping(grow): it saves a bundle, and waits for no back-off."""
    message = f"continues on {nodes} nodes in place of {job.present.placement.nodes}: they are free, and nobody waits"
    deadline = view.now + timedelta(seconds=job.grace_seconds)
    return stop_attempt(job, Stop(StopReason.GROW, view.now, deadline, message), view)
