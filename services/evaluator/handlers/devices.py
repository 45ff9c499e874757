"""The devices that a scoring child computes on: leased before it starts, and given back when it has ended.

They are of this machine, or of another one in a pool of another backend, where the lease has a node.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from schemas.base import Delayed
from services.evaluator import store
from services.evaluator.clients.child import ScoringCrashed
from services.evaluator.decide.nodes import eval_id_of, subject_of
from services.evaluator.model import Evaluation
from shared.device import Device
from shared.device_leases import fence
from shared.device_leases.holder import DeviceLeases
from shared.device_leases.lease import HeldLease, LeaseState
from shared.errors import Unavailable
from shared.failpoints import failpoint
from shared.log import get_logger
from shared.postgres.database import false_if_unavailable
from shared.service import Service

log = get_logger(__name__)

LOOK_SECONDS = 0.5
ASK_AGAIN_SECONDS = 30.0
"""Time after which devices are asked for again that were refused: an operator repairs the setting or the pool."""
LEASE_FILE = "lease"


class DevicesLost(Unavailable):
    """The lease of a scoring child's devices ended before the child did, which is no fault of the child's."""

    dependency = "the lease of its devices"


class Devices:
    def __init__(self, service: Service, leases: DeviceLeases | None, *, device: Device) -> None:
        self._service = service
        self._leases = leases
        self._device = device

    @asynccontextmanager
    async def leased(
        self, evaluation: Evaluation, work_dir: Path, num_devices: int
    ) -> AsyncIterator[Mapping[str, str]]:
        """Wait for so many devices, and have them while this is open; the child's variables. Raises DevicesLost."""
        if self._leases is None:
            yield {}
            return
        subject = subject_of(evaluation.eval_id)
        path = work_dir / LEASE_FILE
        try:
            lease = await self._wait(self._leases, evaluation, subject, num_devices)
            failpoint("eval.devices.leased")
            work_dir.mkdir(parents=True, exist_ok=True)
            self._extend(path, lease)
            following = asyncio.create_task(self._follow(self._leases, lease, path))
            try:
                yield {**lease.environment, fence.VARIABLE: str(path)}
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
        except ScoringCrashed as crash:
            if await self._is_lost(self._leases, subject):
                raise DevicesLost(f"{subject}: the lease ended while it was scored") from crash
            raise
        finally:
            async with self._service.unit() as unit:
                await self._leases.give_back(unit, subject)

    async def wait_for_node(self, evaluation: Evaluation, num_devices: int) -> HeldLease:
        """Return the evaluation's lease of so many devices, once it has a node. It is kept until it is given back or
        refused."""
        lease = await self._wait(self._of_nodes, evaluation, subject_of(evaluation.eval_id), num_devices)
        failpoint("eval.devices.leased")
        return lease

    async def extend(self, lease: HeldLease) -> None:
        await self._ask(self._of_nodes, lease.subject, len(lease.devices))

    async def give_back(self, evaluation: Evaluation) -> None:
        """Give the evaluation's lease back, if it has one: its node ends."""
        async with self._service.unit() as unit:
            await self._of_nodes.give_back(unit, subject_of(evaluation.eval_id))

    async def refuse(self, evaluation: Evaluation, lease: HeldLease, problem: str) -> None:
        """Give back devices that are of no use, show people why, and let some time pass."""
        await self._refuse(self._of_nodes, evaluation, lease, problem)

    @property
    def extend_every_seconds(self) -> float:
        return self._of_nodes.extend_every.total_seconds()

    @property
    def _of_nodes(self) -> DeviceLeases:
        assert self._leases is not None, "the settings require a pool where scoring runs on nodes"
        return self._leases

    async def _wait(
        self, leases: DeviceLeases, evaluation: Evaluation, subject: str, num_devices: int
    ) -> HeldLease:
        """Ask until there are devices. That costs no try of the evaluation and none of its time."""
        shown = ""
        while True:
            lease = await self._ask(leases, subject, num_devices)
            until = asyncio.get_running_loop().time() + leases.extend_every.total_seconds()
            while lease.is_awaited(self._service.clock()):
                if (reason := _reason(leases, lease)) and reason != shown:
                    shown = reason
                    await self._show(evaluation, shown)
                if asyncio.get_running_loop().time() > until:
                    break
                await asyncio.sleep(LOOK_SECONDS)
                known = await self._find(leases, subject)
                if known is None:  # somebody else has given it back
                    break
                lease = known
            if lease.is_awaited(self._service.clock()) or lease.state is LeaseState.ENDED:
                continue
            problem = self._problem_of(leases, lease)
            if not problem:
                return lease
            await self._refuse(leases, evaluation, lease, problem)

    def _problem_of(self, leases: DeviceLeases, lease: HeldLease) -> str:
        """Return why nothing can be scored on what was leased; empty where it can."""
        if lease.state is not LeaseState.HELD:
            return lease.reason
        if lease.device not in (None, self._device):
            return f"pool {leases.pool} has {lease.device}, expected {self._device}"
        if (lease.node is not None) == leases.has_nodes:
            return ""
        where = "on a node of another backend" if lease.node else "on the provisioner's machine"
        return f"they are {where}, expected otherwise: see EVALUATOR_ON_NODES"

    async def _refuse(
        self, leases: DeviceLeases, evaluation: Evaluation, lease: HeldLease, problem: str
    ) -> None:
        """Show what an operator must repair, and let some time pass."""
        log.error("devices cannot be leased", pool=leases.pool, problem=problem)
        await self._show(evaluation, f"devices of pool {leases.pool}: {problem}")
        async with self._service.unit() as unit:
            await leases.give_back(unit, lease.subject)
        await asyncio.sleep(ASK_AGAIN_SECONDS)

    async def _ask(self, leases: DeviceLeases, subject: str, num_devices: int) -> HeldLease:
        """Ask for devices, or extend the lease that a process before this one has left.

        Raises: DevicesLost where a node would have nothing to score.
        """
        async with self._service.unit() as unit:
            if leases.has_nodes and not await store.lock_work(unit.conn, eval_id_of(subject)):
                raise DevicesLost(f"{subject}: somebody else has ended what was to be scored")
            await leases.ask(unit, subject, devices=num_devices)
            lease = await leases.find(unit.conn, subject)
        assert lease is not None, "it was just asked for"
        return lease

    async def _find(self, leases: DeviceLeases, subject: str) -> HeldLease | None:
        async with self._service.unit() as unit:
            return await leases.find(unit.conn, subject)

    async def _follow(self, leases: DeviceLeases, held: HeldLease, path: Path) -> None:
        """Extend the lease, and let the child run for as long as that was confirmed."""
        clock = asyncio.get_running_loop().time
        extended_at, known = clock(), None

        async def look() -> bool:
            nonlocal extended_at, known
            if clock() - extended_at > leases.extend_every.total_seconds():
                await self._ask(leases, held.subject, len(held.devices))
                extended_at = clock()
            lease = await self._find(leases, held.subject)
            if lease is None or lease.state is not LeaseState.HELD:
                fence.extend(path, 0.0)
            elif lease != known:
                self._extend(path, lease)
                known = lease
            return True

        while True:
            await false_if_unavailable(look())  # the child ends with what was confirmed last
            await asyncio.sleep(LOOK_SECONDS)

    async def _is_lost(self, leases: DeviceLeases, subject: str) -> bool:
        lease = await self._find(leases, subject)
        return lease is None or lease.state is not LeaseState.HELD or lease.is_awaited(self._service.clock())

    def _extend(self, path: Path, lease: HeldLease) -> None:
        assert lease.until is not None, f"lease {lease.lease_id} is held without an end"
        fence.extend(path, (lease.until - self._service.clock()).total_seconds())

    async def _show(self, evaluation: Evaluation, waiting_for: str) -> None:
        about = evaluation.artifact
        async with self._service.unit() as unit:
            await unit.emit(Delayed(subject_id=about.job_id, tenant=about.tenant, waiting_for=waiting_for))


def _reason(leases: DeviceLeases, lease: HeldLease) -> str:
    """Return what a lease waits for, also where its cluster backend does not say; empty where that is not known."""
    return lease.reason or (f"the queue of pool {leases.pool}" if lease.state is LeaseState.QUEUED else "")
