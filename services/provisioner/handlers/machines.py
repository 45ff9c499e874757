"""The record of machines: failures of their nodes, and which take no work."""

from schemas.base import FailureClass
from schemas.node import (
    CordonMachine,
    FailureKind,
    MachineCordoned,
    MachineUncordoned,
    NodeLost,
    UncordonMachine,
)
from schemas.training import TrainingFailed
from services.provisioner import machines, store
from services.provisioner.backends.protocol import AttemptStatus
from services.provisioner.handlers.leases import announce
from services.provisioner.machines import FAILURES_WITHIN, Cordon, Failure
from services.provisioner.model import Attempt, Lease, Pool
from shared.errors import Refused
from shared.log import get_logger
from shared.messaging.unit import Unit

log = get_logger(__name__)


async def cordon_machine(command: CordonMachine, unit: Unit) -> None:
    pool = await _pool(unit, command.pool)
    await _cordon(unit, pool, Cordon(pool.name, command.machine, "operator", command.reason))


async def uncordon_machine(command: UncordonMachine, unit: Unit) -> None:
    pool = machines.on_uncordon(await _pool(unit, command.pool), command.machine)
    await store.remove_cordon(unit.conn, pool.name, command.machine)
    await store.save_pool(unit.conn, pool)
    await unit.emit(MachineUncordoned(pool=pool.name, machine=command.machine))
    await announce(unit, pool)


async def training_failed(event: TrainingFailed, unit: Unit) -> None:
    if event.failure_class is not FailureClass.INFRA or event.node_id is None:
        return
    if attempt := await store.lock_attempt(unit.conn, event.job_id, event.attempt):
        await _record(unit, attempt, event.node_id, FailureKind.TRAINING_FAILED, event.message)


async def record(unit: Unit, attempt: Attempt, lost: NodeLost) -> None:
    """Keep that a node was lost, and cordon its machine where that is once too often."""
    if lost.failure_class is FailureClass.INFRA:
        await _record(unit, attempt, lost.node_id, FailureKind.NODE_LOST, lost.message)


async def record_unnoticed(unit: Unit, attempt: Attempt, status: AttemptStatus | None) -> None:
    """Keep which machines of an attempt that has ended were lost, where nothing reported it while it ran."""
    for node in machines.lost_unnoticed(attempt, status):
        message = f"machine {node.host} of node {node.node_id} was lost"
        await _record(unit, attempt.with_node(node), node.node_id, FailureKind.NODE_LOST, message)


async def record_of_lease(unit: Unit, lease: Lease, status: AttemptStatus | None, message: str) -> None:
    """Keep that a lease's node ended by its machine; once it may be known to be lost, once more."""
    failure = machines.failure_of_lease(lease, status, message, now=unit.now)
    pool = failure and await store.lock_pool(unit.conn, lease.pool)
    if failure and pool:
        log.warning(
            "machine failed under a lease", machine=failure.machine, lease_id=lease.lease_id, reason=message
        )
        await _keep(unit, pool, failure)


async def _record(unit: Unit, attempt: Attempt, node_id: str, kind: FailureKind, message: str) -> None:
    pool = await store.lock_pool(unit.conn, attempt.pool)
    failure = pool and machines.failure_of(attempt, pool, node_id, kind, message, now=unit.now)
    if pool and failure:
        await _keep(unit, pool, failure)


async def _keep(unit: Unit, pool: Pool, failure: Failure) -> None:
    """Add it to the record, and cordon its machine where that is once too often."""
    await store.add_failure(unit.conn, failure)
    recent = await store.list_failures_of_machine(
        unit.conn, pool.name, failure.machine, since=unit.now - FAILURES_WITHIN
    )
    if cordon := machines.cordon_after(pool, failure.machine, recent):
        log.warning("machine cordoned", pool=pool.name, machine=cordon.machine, reason=cordon.reason)
        await _cordon(unit, pool, cordon)
    else:
        await announce(unit, pool)


async def _cordon(unit: Unit, pool: Pool, cordon: Cordon) -> None:
    without = machines.on_cordon(pool, cordon.machine)
    await store.add_cordon(unit.conn, cordon)
    await store.save_pool(unit.conn, without)
    cordoned = MachineCordoned(
        pool=pool.name, machine=cordon.machine, source=cordon.source, reason=cordon.reason
    )
    await unit.emit(cordoned)
    await announce(unit, without)


async def _pool(unit: Unit, name: str) -> Pool:
    pool = await store.lock_pool(unit.conn, name)
    if pool is None:
        raise Refused("unknown_pool", f"no pool {name}", param="pool")
    return pool
