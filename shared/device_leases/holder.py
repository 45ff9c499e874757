"""Devices that a service leases of the provisioner: it asks, extends, hears what came of it, and gives them back.

The service's schema has the table `held_lease` (its own migration). No process computes on the devices after `until`,
the end that was confirmed last: it ends itself then (`fence.py`), and nobody gets the devices earlier.
"""

from datetime import timedelta
from uuid import uuid4

from schemas.base import CommandRefused
from schemas.node import (
    DeviceLeaseEnded,
    DeviceLeaseQueued,
    DevicesLeased,
    LeaseDevices,
    LeaseEnd,
    ReturnDevices,
)
from schemas.topics import NODE_EVENTS
from shared.device_leases.lease import HeldLease, LeaseState
from shared.messaging.unit import Unit
from shared.postgres.database import Connection
from shared.postgres.rows import Columns, read
from shared.service import Service

EXTENSIONS_PER_TERM = 5
"""How often a lease is extended within its term: some of them may be late."""

LEASE = Columns("subject, lease_id, state, devices, device, until, reason, node")
LIST = f"SELECT {LEASE.selected} FROM held_lease ORDER BY subject"
FIND = f"SELECT {LEASE.selected} FROM held_lease WHERE subject = $1"
FIND_BY_ID = f"SELECT {LEASE.selected} FROM held_lease WHERE lease_id = $1"
FORGET_ENDED = "DELETE FROM held_lease WHERE subject = $1 AND state IN ('ended', 'refused')"
# One that is asked for again keeps its id, by which the provisioner extends it.
ASK = """
    INSERT INTO held_lease (subject, lease_id, state) VALUES ($1, $2, 'asked')
    ON CONFLICT (subject) DO UPDATE SET subject = excluded.subject RETURNING lease_id"""
HAS_OTHERS = """
    SELECT EXISTS (SELECT FROM held_lease WHERE subject = $1 AND state = 'held'
                       AND jsonb_array_length(devices) NOT IN (0, $2))"""
LIST_OPEN = "SELECT subject FROM held_lease WHERE state IN ('asked', 'queued', 'held') ORDER BY subject"
QUEUE = """
    UPDATE held_lease SET state = 'queued', reason = $2 WHERE lease_id = $1 AND state IN ('asked', 'queued')"""
HOLD = """
    UPDATE held_lease SET state = 'held', devices = $2, device = $3, until = $4, node = $5, reason = ''
     WHERE lease_id = $1 AND state <> 'ended'"""
END = "UPDATE held_lease SET state = $2, reason = $3 WHERE lease_id = $1"
FORGET = "DELETE FROM held_lease WHERE subject = $1 RETURNING lease_id, state"


class DeviceLeases:
    """The leases of one service, all of one pool."""

    def __init__(
        self, *, pool: str, devices: int, purpose: str, term: timedelta, has_nodes: bool = False
    ) -> None:
        """devices: of a lease, unless a call names another number. has_nodes: whether nodes of them compute, in a
        pool of another backend than this machine."""
        self.pool = pool
        self.has_nodes = has_nodes
        self.term = term
        self._devices = devices
        self._purpose = purpose

    @property
    def extend_every(self) -> timedelta:
        return self.term / EXTENSIONS_PER_TERM

    async def ask(self, unit: Unit, subject: str, *, devices: int | None = None) -> None:
        """Ask for devices for the subject, or extend its lease. After one that has ended it is a new one.

        devices: a lease of another number is given back, and this is a new one; None: as many as each lease has.
        """
        if devices and await unit.conn.fetchval(HAS_OTHERS, subject, devices):
            await self.give_back(unit, subject)
        await unit.conn.execute(FORGET_ENDED, subject)
        lease_id = await unit.conn.fetchval(ASK, subject, f"{subject}-{uuid4().hex[:12]}")
        command = LeaseDevices(
            lease_id=lease_id,
            holder=unit.writer,
            purpose=self._purpose,
            pool=self.pool,
            has_node=self.has_nodes,
            devices=devices or self._devices,
            until=unit.now + self.term,
        )
        await unit.emit(command)

    async def extend_all(self, unit: Unit) -> None:
        """Extend all leases that are held or waited for."""
        for row in await unit.conn.fetch(LIST_OPEN):
            await self.ask(unit, row["subject"])

    @staticmethod
    async def give_back(unit: Unit, subject: str) -> None:
        """Give back what is leased for the subject, if anything is: none of its processes is left, or they are on the
        lease's node, which ends with it."""
        row = await unit.conn.fetchrow(FORGET, subject)
        if row is not None and row["state"] not in (LeaseState.ENDED, LeaseState.REFUSED):
            await unit.emit(ReturnDevices(lease_id=row["lease_id"]))

    async def find(self, conn: Connection, subject: str) -> HeldLease | None:
        row = await conn.fetchrow(FIND, subject)
        return read(HeldLease, row) if row else None

    async def list(self, conn: Connection) -> dict[str, HeldLease]:
        """Return all leases by subject."""
        leases = [read(HeldLease, row) for row in await conn.fetch(LIST)]
        return {lease.subject: lease for lease in leases}


async def find_by_id(conn: Connection, lease_id: str) -> HeldLease | None:
    row = await conn.fetchrow(FIND_BY_ID, lease_id)
    return read(HeldLease, row) if row else None


def listen(service: Service) -> None:
    """Keep what the provisioner says of the leases of this service."""
    service.on(DevicesLeased, _leased)
    service.on(DeviceLeaseQueued, _queued)
    service.on(DeviceLeaseEnded, _ended)
    service.on(CommandRefused, _refused, topic=NODE_EVENTS)


async def _leased(fact: DevicesLeased, unit: Unit) -> None:
    node = fact.node and fact.node.model_dump(mode="json")
    await unit.conn.execute(HOLD, fact.lease_id, list(fact.devices), fact.device, fact.until, node)


async def _queued(fact: DeviceLeaseQueued, unit: Unit) -> None:
    await unit.conn.execute(QUEUE, fact.lease_id, fact.waiting_for)


async def _ended(fact: DeviceLeaseEnded, unit: Unit) -> None:
    state = LeaseState.REFUSED if fact.reason is LeaseEnd.NODE_ENDED else LeaseState.ENDED
    reason = fact.message or f"the lease ended: {fact.reason}"
    await unit.conn.execute(END, fact.lease_id, state, reason)


async def _refused(fact: CommandRefused, unit: Unit) -> None:
    if fact.command == LeaseDevices.type:
        await unit.conn.execute(END, fact.subject_id, LeaseState.REFUSED, f"{fact.code}: {fact.message}")
