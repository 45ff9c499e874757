"""The record of machines: which failed, which take no work, and which an attempt avoids. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from schemas.node import FailureKind, MachineFailure, PoolCapacityChanged
from services.provisioner.backends.protocol import AttemptStatus
from services.provisioner.model import Attempt, Node, Pool
from shared.errors import Refused

FAILURES_WITHIN = timedelta(hours=24)
"""How long a failure counts against its machine."""
MIN_JOBS = 2
"""Of how many jobs the failures must be: one job alone may fail by its own fault, wherever it runs."""
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
    number: int
    """Number of the attempt."""
    failed_at: datetime
    message: str
    kind: FailureKind | None = None
    """None where it was recorded before kinds were."""
    is_past: bool = False
    """Whether its machine was uncordoned since."""

    @property
    def announced(self) -> MachineFailure:
        return MachineFailure(
            machine=self.machine,
            kind=self.kind,
            job_id=self.job_id,
            attempt=self.number,
            node_id=self.node_id,
            devices=self.devices,
            failed_at=self.failed_at,
            counts_until=None if self.is_past else self.failed_at + FAILURES_WITHIN,
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
    """Return what is announced of a pool. `failures`: its newest, the newest first."""
    announced = {
        "failures": tuple(failure.announced for failure in failures[:NUM_ANNOUNCED]),
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
    of_jobs = {failure.job_id for failure in failures}
    if (
        pool.is_local
        or machine in pool.cordoned
        or not is_due
        or len(of_jobs) < MIN_JOBS
        or 2 * (len(pool.cordoned) + 1) > num_machines
    ):
        return None
    hours = FAILURES_WITHIN / timedelta(hours=1)
    reason = f"{len(failures)} failures of {len(of_jobs)} jobs within {hours:g} h; the last: {failures[-1].message}"
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


def avoided(pool: Pool, failures: Iterable[Failure], *, nodes: int) -> tuple[str, ...]:
    """Return the machines that an attempt must not run on: those that are cordoned, and if the pool has enough others
    those where its job has just failed.

    failures: of the job's attempt before.
    """
    if pool.is_local:
        return ()
    failed = {failure.machine for failure in failures if failure.pool == pool.name} - {*pool.cordoned}
    has_others = pool.nodes - len(failed) >= nodes
    return tuple(sorted({*pool.cordoned} | (failed if has_others else set())))
