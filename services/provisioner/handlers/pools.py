"""Capacity: from the file, from the operator, and from drained nodes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from schemas.node import DrainNode, SetPoolCapacity
from services.provisioner import decide, pools, store
from services.provisioner.backends.dispatch import Backends
from services.provisioner.backends.gpus import count_gpus
from services.provisioner.backends.protocol import Backend, BackendFailed
from services.provisioner.handlers.apply import apply
from services.provisioner.handlers.leases import announce
from services.provisioner.model import Pool
from services.provisioner.settings import ClusterPool, parse_clusters, parse_pools
from shared.errors import Refused
from shared.log import get_logger
from shared.messaging.unit import Unit
from shared.service import Service

log = get_logger(__name__)

Connect = Callable[[Mapping[str, ClusterPool]], Mapping[str, Backend]]
"""Returns the backends of pools that are not of this machine."""


@dataclass(frozen=True)
class Pools:
    service: Service
    file: Path
    backends: Backends
    connect: Connect

    async def read(self) -> None:
        """Read the pools of the file at start, and announce what each has, for whoever plans with it.

        Raises: ValueError, which names the file and all that is wrong in it.
        """
        text = self.file.read_text()
        try:
            configured_pools = parse_pools(text, count_gpus=count_gpus)
        except ValueError as error:
            raise ValueError(f"{self.file}: {error}") from error
        async with self.service.unit() as unit:
            known = await store.lock_pools(unit.conn)
            present = pools.on_pools_read(known, configured_pools)
            for pool in present:
                await _save(unit, pool)
        self.backends.use(present, self.connect(parse_clusters(text)))

    async def drain_node(self, command: DrainNode, unit: Unit) -> None:
        attempt, beside = await store.lock_attempts_beside(unit.conn, command.node_id)
        machine, noticed = decide.on_drain(
            attempt, beside, command.node_id, grace_seconds=command.grace_seconds, now=unit.now
        )
        for before, decision in noticed:
            await apply(unit, before, decision)
        if pool := await store.lock_pool(unit.conn, noticed[0][0].pool):
            await _save(unit, pools.on_drained(pool, machine))

    async def set_capacity(self, command: SetPoolCapacity, unit: Unit) -> None:
        pool = await store.lock_pool(unit.conn, command.pool)
        if pool is None:
            raise Refused("unknown_pool", f"no pool {command.pool}", param="pool")
        if pool.is_counted:
            message = (
                f"pool {pool.name} has the nodes of its cluster: drain them there, or set nodes in its file"
            )
            raise Refused("nodes_counted", message, param="pool")
        await _save(unit, replace(pool, nodes=command.nodes, drained=()))

    async def count(self) -> None:
        """Take in how many machines take work, for the pools that have as many as their cluster."""
        async with self.service.unit() as unit:
            names = await store.counted_pools(unit.conn)
        for name in names:
            try:
                machines = await self.backends.of(name).machines(name)
            except BackendFailed as failure:
                log.warning("machines are not counted", pool=name, error=str(failure))
                continue
            async with self.service.unit() as unit:
                pool = await store.lock_pool(unit.conn, name)
                counted = pool and pools.on_counted(pool, machines)
                if counted and counted != pool:
                    log.info("machines counted", pool=name, nodes=counted.nodes)
                    await _save(unit, counted)


async def _save(unit: Unit, pool: Pool) -> None:
    await store.save_pool(unit.conn, pool)
    await announce(unit, pool)
