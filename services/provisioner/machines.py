"""The record of machines: which failed, which take no work, and which an attempt avoids. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from schemas.node import EXIT_FENCED, FailureKind, LeaseFailure, MachineFailure, PoolCapacityChanged
from services.provisioner.backends.protocol import AttemptStatus, Cause, Member, MemberState
from services.provisioner.model import CLEAN_EXITS, Attempt, Lease, Node, Pool
from shared.errors import Refused

FAILURES_WITHIN = timedelta(hours=24)
"""How long a failure counts against its machine."""
MIN_JOBS = 2
"""Of how many jobs the failures must be, or leases whose machine was lost: one job alone may fail by its own fault,
wherever it runs, and so may a service's program."""
NUM_ANNOUNCED = 50
"""Failures of a pool that are announced, the newest."""
MESSAGE_CHARACTERS = 500


@dataclass(frozen=True)
class Failure:
    """A node that was lost, or where training failed, for a reason of its machine."""

    node_id: str
    pool: str
    machine: str
    devices: tuple[int, ...]
    """Numbers of the devices that it had there."""
    job_id: str
    """Empty of a lease's node."""
    number: int
    """Number of the attempt."""
    failed_at: datetime
    message: str
    kind: FailureKind | None = None
    """None of a lease's node, and where it was recorded before kinds were."""
    is_past: bool = False
    """Whether its machine was uncordoned since."""
    lease_id: str = ""
    """Lease whose node it was; empty of an attempt's node."""
    holder: str = ""
    """Name of the service that had the lease."""
    purpose: str = ""
    """What the lease was for."""
    has_lost_machine: bool = False
    """Of a lease's node: whether the backend lost the machine, and not its processes alone."""

    @property
    def counts_until(self) -> datetime | None:
        return None if self.is_past else self.failed_at + FAILURES_WITHIN

    @property
    def announced(self) -> MachineFailure | LeaseFailure:
        if self.lease_id:
            return LeaseFailure(
                machine=self.machine,
                lease_id=self.lease_id,
                holder=self.holder,
                purpose=self.purpose,
                node_id=self.node_id,
                devices=self.devices,
                failed_at=self.failed_at,
                counts_until=self.counts_until,
                has_lost_machine=self.has_lost_machine,
                message=self.message[:MESSAGE_CHARACTERS],
            )
        return MachineFailure(
            machine=self.machine,
            kind=self.kind,
            job_id=self.job_id,
            attempt=self.number,
            node_id=self.node_id,
            devices=self.devices,
            failed_at=self.failed_at,
            counts_until=self.counts_until,
            message=self.message[:MESSAGE_CHARACTERS],
        )


@dataclass(frozen=True)
class Cordon:
    """Why a machine takes no work."""

    pool: str
    machine: str
    source: str
    reason: str


def failure_of(
    attempt: Attempt, pool: Pool, node_id: str, kind: FailureKind, message: str, *, now: datetime
) -> Failure | None:
    """Return what the record keeps; None where nobody knows which machine it was."""
    node = next((node for node in attempt.nodes if node.node_id == node_id), None)
    if node is None:
        return None
    number = None if node.machine is None else str(node.machine)
    machine = number if pool.is_local else node.host
    if machine is None:
        return None
    return Failure(
        node_id,
        pool.name,
        machine,
        node.devices,
        attempt.job_id,
        attempt.number,
        failed_at=now,
        message=message,
        kind=kind,
    )


def failure_of_lease(
    lease: Lease, status: AttemptStatus | None, message: str, *, now: datetime
) -> Failure | None:
    """Return what the record keeps of how a lease's node ended; None where its machine is not known, or not at fault.

    An end by the fence is the platform's, and one that somebody asked for is nobody's.
    """
    member = next(iter(status.members), None) if status else None
    host = lease.node and member and (member.host or lease.node.host)
    if member is None or lease.node is None or not host or not _is_of_machine(member):
        return None
    return Failure(
        lease.node.leased.node_id,
        lease.pool,
        host,
        lease.devices,
        job_id="",
        number=0,
        failed_at=now,
        message=message,
        lease_id=lease.lease_id,
        holder=lease.holder,
        purpose=lease.purpose,
        has_lost_machine=member.has_lost_machine,
    )


def _is_of_machine(member: Member) -> bool:
    if member.state is not MemberState.ENDED:
        return False
    by_itself = member.cause is Cause.EXITED and member.exit_code not in {*CLEAN_EXITS, EXIT_FENCED}
    return member.has_lost_machine or member.cause is Cause.NODE_LOST or by_itself


def lost_unnoticed(attempt: Attempt, status: AttemptStatus | None) -> tuple[Node, ...]:
    """Return the nodes of an attempt that has ended whose machine the backend lost, though another node failed first.

    In a gang that is the usual order: a peer that hears nothing any more fails before anybody misses the machine.
    """
    lost = {member.index: member for member in (status.members if status else ()) if member.has_lost_machine}
    return tuple(
        replace(node, host=lost[node.index].host or node.host)
        for node in attempt.nodes
        if not node.has_ended and node.index in lost
    )


def capacity(pool: Pool, failures: Sequence[Failure]) -> PoolCapacityChanged:
    """Return what is announced of a pool. `failures`: the newest under attempts and those under leases, the newest of
    each first."""
    newest = [failure.announced for failure in failures]
    announced = {
        "failures": tuple(each for each in newest if isinstance(each, MachineFailure))[:NUM_ANNOUNCED],
        "lease_failures": tuple(each for each in newest if isinstance(each, LeaseFailure))[:NUM_ANNOUNCED],
        "cordon_after_failures": 0 if pool.is_local else pool.cordon_after_failures,
        "cordon_after_jobs": MIN_JOBS,
    }
    return pool.capacity.model_copy(update=announced)


def cordon_after(pool: Pool, machine: str, failures: Sequence[Failure]) -> Cordon | None:
    """Return the cordon that a machine gets for its failures, None where it stays in use.

    At most half of a pool's machines are cordoned so: what fails everywhere is no machine's fault. Those of the local
    backend are parts of one machine; an operator may cordon them.

    failures: of the machine, those of the last FAILURES_WITHIN.
    """
    num_machines = pool.nodes + len(pool.cordoned)
    is_due = 0 < pool.cordon_after_failures <= len(failures)
    of_jobs = {failure.announced.subject for failure in failures}
    if (
        pool.is_local
        or machine in pool.cordoned
        or not is_due
        or len(of_jobs) < MIN_JOBS
        or 2 * (len(pool.cordoned) + 1) > num_machines
    ):
        return None
    hours = FAILURES_WITHIN / timedelta(hours=1)
    holders = "jobs and services" if any(failure.lease_id for failure in failures) else "jobs"
    count = f"{len(failures)} failures of {len(of_jobs)} {holders}"
    reason = f"{count} within {hours:g} h; the last: {failures[-1].message}"
    return Cordon(pool.name, machine, "failures", reason)


def on_cordon(pool: Pool, machine: str) -> Pool:
    """Return the pool without the machine. Raises: Refused where the pool cannot have such a machine."""
    if machine in pool.cordoned:
        return pool
    if pool.is_local and machine not in {str(number) for number in (*pool.free, *pool.leased, *pool.drained)}:
        numbers = ", ".join(map(str, pool.free))
        message = f"pool {pool.name} has no machine {machine}; expected a number of: {numbers or 'none'}"
        raise Refused("unknown_machine", message, param="machine")
    is_counted = not pool.is_local or int(machine) in pool.free
    return replace(
        pool, nodes=max(0, pool.nodes - is_counted), cordoned=tuple(sorted((*pool.cordoned, machine)))
    )


def on_uncordon(pool: Pool, machine: str) -> Pool:
    """Return the pool with the machine. Raises: Refused where it takes work as it is."""
    if machine not in pool.cordoned:
        names = ", ".join(pool.cordoned)
        message = f"machine {machine} of pool {pool.name} is not cordoned; those that are: {names or 'none'}"
        raise Refused("not_cordoned", message, param="machine")
    cordoned = tuple(name for name in pool.cordoned if name != machine)
    is_drained = pool.is_local and int(machine) in pool.drained
    return replace(pool, nodes=pool.nodes + (not is_drained), cordoned=cordoned)


def is_recent(failure: Failure, now: datetime) -> bool:
    """Return whether it counts: a day has not passed, and its machine was not uncordoned since."""
    return failure.counts_until is not None and failure.counts_until > now


def avoided(pool: Pool, failures: Iterable[Failure], *, nodes: int) -> tuple[str, ...]:
    """Return the machines that an attempt or a lease's node must not run on: those that are cordoned, and if the pool
    has enough others those where it has just failed.

    failures: of the job's attempt before, or the newest of the service's nodes.
    """
    if pool.is_local:
        return ()
    failed = {failure.machine for failure in failures if failure.pool == pool.name} - {*pool.cordoned}
    has_others = pool.nodes - len(failed) >= nodes
    return tuple(sorted({*pool.cordoned} | (failed if has_others else set())))
