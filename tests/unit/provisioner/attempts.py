"""Pools and attempts, and what a decision of each makes of them."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from schemas.base import CapacityType, DatasetRef, FileRef
from schemas.job import JobScheduled, JobStopping, StopReason
from schemas.specification import JobSpec
from services.provisioner import decide
from services.provisioner.backends.protocol import AttemptStatus, Cause, Member, MemberState
from services.provisioner.decide import Decision
from services.provisioner.model import Attempt, Pool

NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
START_DEADLINE = NOON + 60 * SECOND
SHA = "a" * 64
WHO = {"job_id": "ftjob-1", "tenant": "acme", "attempt": 1}


def a_pool(*, nodes: int = 4, held: int = 0, **changes: object) -> Pool:
    """With two devices on each machine, of which the first `held` are held whole."""
    leased = {machine: frozenset({2 * machine, 2 * machine + 1}) for machine in range(held)}
    pool = Pool("spot", CapacityType.SPOT, nodes, 2, Decimal("0.10"), file_nodes=nodes, leased=leased)
    return replace(pool, **changes)


def a_schedule(*, nodes: int = 2, **changes: object) -> JobScheduled:
    fields = {
        **WHO,
        "spec": JobSpec(
            base_model="tiny", base_sha=SHA, training_file=FileRef(file_id="file-1", sha256=SHA, size_bytes=1)
        ),
        "base_sha": SHA,
        "dataset": DatasetRef(version=SHA, manifest_sha256=SHA),
        "config_hash": SHA,
        "resume": None,
        "pool": "spot",
        "capacity_type": CapacityType.SPOT,
        "nodes": nodes,
        "devices_per_node": 1,
        "grace_seconds": 30,
        "start_deadline": START_DEADLINE,
    }
    return JobScheduled(**fields | changes)


def creating(**changes: object) -> Attempt:
    attempt = decide.on_job_scheduled(a_schedule(), a_pool(), now=NOON).attempt
    return replace(attempt, **changes)


def running(**changes: object) -> Attempt:
    return replace(decide.on_created(creating(), has_nodes=True, now=NOON).attempt, **changes)


def stopping(*, seconds: float = 30) -> JobStopping:
    return JobStopping(**WHO, reason=StopReason.CANCEL, deadline=NOON + timedelta(seconds=seconds))


def stop(attempt: Attempt | None, *, seconds: float = 30, now: datetime = NOON) -> Decision:
    return decide.on_job_stopping(attempt, stopping(seconds=seconds), now=now)


def ended(index: int, code: int | None, **changes: object) -> Member:
    cause = Cause.NODE_LOST if code is None else Cause.EXITED
    return replace(Member(index, MemberState.ENDED, exit_code=code, cause=cause), **changes)


def shown(attempt: Attempt, *members: Member, now: datetime = NOON, **changes: str) -> Decision:
    return decide.on_status(attempt, AttemptStatus(attempt.name, members, **changes), now=now)


def exits(attempt: Attempt, codes: dict[int, int | None]) -> Decision:
    return shown(attempt, *(ended(index, code) for index, code in codes.items()))


def types(decision: Decision) -> list[type]:
    return [type(event) for event in decision.events]
