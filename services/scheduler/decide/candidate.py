"""What the queue must know of a waiting job."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Self

from schemas.elastic import sizes_of
from schemas.specification import Resources, Tier
from services.scheduler.model import Job


@dataclass(frozen=True)
class Candidate:
    job_id: str
    tenant: str
    tier: Tier
    queued_at: datetime
    resources: Resources
    """What it needs at least."""
    not_before: datetime | None = None
    no_capacity_at: Mapping[str, datetime] = field(default_factory=dict)
    longest: timedelta | None = None
    """How long it holds its devices at most; None: for as long as it takes."""
    larger: tuple[Resources, ...] = ()
    """What an elastic job takes in place of the least where it is free, the smallest first."""

    @property
    def sizes(self) -> "tuple[Candidate, ...]":
        """The candidate with each number of nodes that it may take, the largest first."""
        larger = tuple(replace(self, resources=each, larger=()) for each in reversed(self.larger))
        return (*larger, replace(self, larger=()) if larger else self)

    def ends_by(self, start: datetime) -> datetime | None:
        return None if self.longest is None else start + self.longest

    def is_backing_off(self, now: datetime) -> bool:
        return self.not_before is not None and now < self.not_before

    @classmethod
    def of(cls, job: Job, *, queued_at: datetime) -> Self:
        least, *larger = sizes_of(job.spec.resources)
        return cls(
            job_id=job.id,
            tenant=job.tenant,
            tier=job.spec.tier,
            queued_at=queued_at,
            resources=least,
            larger=tuple(larger),
            not_before=job.not_before,
            no_capacity_at=job.no_capacity_at,
            longest=longest_hold(least),
        )


def longest_hold(resources: Resources) -> timedelta | None:
    """Return the run time that is stated, with the time to save a bundle after it; None where none is stated."""
    if resources.max_run_seconds is None:
        return None
    return timedelta(seconds=resources.max_run_seconds + resources.grace_seconds)
