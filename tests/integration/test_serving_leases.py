"""Replicas start on devices that they have leased, and give them back when nothing of them runs any more.

Provisioner, Kafka and Postgres are real, replicas are stand-ins; that a process ends with its lease is in
tests/unit/shared/test_fence.py and tests/serving.
"""

from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from deploy.local.stack import Stack
from schemas.node import (
    DeviceLeaseEnded,
    DeviceLeaseQueued,
    DevicesLeased,
    LeaseEnd,
    NodesProvisioned,
    NodesReleased,
)
from shared.postgres.migrate import migrate
from tests.chaos import pipeline
from tests.integration import test_serving_controller
from tests.integration.attempts import Attempts
from tests.integration.engines import Engines
from tests.integration.provisioning import attempts_on, provisioner_env_of
from tests.integration.test_serving_controller import World, controller
from tests.waiting import until

pytestmark = pytest.mark.stack

objects, voice = test_serving_controller.objects, test_serving_controller.voice
listening, world = test_serving_controller.listening, test_serving_controller.world

POOLS = """
[pools.places]
capacity_type = "spot"
device = "cpu"
nodes = 1
devices_per_node = 2
"""
TERM = timedelta(seconds=10)
LEASED = {"pool": "places", "devices_per_replica": 2, "one_process": False, "lease_term": TERM}


@pytest.fixture(scope="module", autouse=True)
async def history(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Read what tests of other services have sent: their base models would get replicas, and so devices, beside ours."""
    await migrate("serving_controller", stack.postgres_dsn("serving_controller"))
    async with controller(stack, Engines(tmp_path_factory.mktemp("replicas"))):
        await pipeline.caught_up(stack, "serving_controller")


@pytest.fixture(scope="module")
async def attempts(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Attempts]:
    env = provisioner_env_of(stack, tmp_path_factory.mktemp("serving-leases"), POOLS)
    async with attempts_on(stack, env) as attempts:
        yield attempts


@pytest.fixture
async def database(stack: Stack) -> AsyncIterator[asyncpg.Connection]:
    conn = await asyncpg.connect(stack.postgres_dsn("serving_controller"))
    yield conn
    await conn.close()


async def lease_of(database: asyncpg.Connection, world: World) -> str:
    """Return the id of the replica's lease, once it was asked for."""

    async def asked() -> str | None:
        lease: str | None = await database.fetchval(
            "SELECT lease_id FROM held_lease WHERE subject = $1", world.replica
        )
        return lease

    return str(await until(asked, "a lease of the replica"))


async def test_a_replica_waits_for_training_and_gives_its_devices_back_when_it_is_lost(
    stack: Stack, world: World, attempts: Attempts, database: asyncpg.Connection
):
    job = await attempts.schedule(pool="places")
    await attempts.until(job.job_id, NodesProvisioned)
    async with controller(stack, world.engines, **LEASED):
        await world.register()
        lease = await lease_of(database, world)
        queued = await attempts.until(lease, DeviceLeaseQueued)
        assert (queued.holder, queued.purpose, queued.devices) == ("serving_controller", "serving", 2)
        assert queued.waiting_for == "2 devices of one machine of pool places: 1 held by jobs"
        assert world.engines.starts_of(world.pool) == []

        await attempts.stop(job, seconds=0)
        await attempts.until(job.job_id, NodesReleased)
        assert (await attempts.until(lease, DevicesLeased)).devices == (0, 1)
        await world.heard("ReplicaReady")
        assert world.engines.starts_of(world.pool) == [world.replica]
        spec = world.engines.running[world.replica].spec
        assert (spec.devices, spec.lease_seconds is not None) == ({}, True)

        await attempts.until(lease, DevicesLeased, times=3)
        await until(lambda: _extended(world), "the replica's lease to be extended")
        world.engines.running[world.replica].is_alive = False
        await world.heard("ReplicaLost")
        await attempts.until(lease, DeviceLeaseEnded, reason=LeaseEnd.RETURNED)
        again = await until(lambda: _other(database, world, lease), "another lease")
        await attempts.until(again, DevicesLeased)
        await until(lambda: _starts(world, 2), "the replica to start again")


async def test_a_controller_that_starts_again_has_its_replicas_leases_and_loses_those_that_ended(
    stack: Stack, world: World, attempts: Attempts, database: asyncpg.Connection
):
    async with controller(stack, world.engines, **LEASED):
        await world.register()
        lease = await lease_of(database, world)
        await world.heard("ReplicaReady")
    async with controller(stack, world.engines, **LEASED):
        await attempts.until(lease, DevicesLeased, times=3)
        assert world.engines.starts_of(world.pool) == [world.replica]
    await attempts.until(lease, DeviceLeaseEnded, reason=LeaseEnd.EXPIRED)
    async with controller(stack, world.engines, **LEASED):
        lost = await world.heard("ReplicaLost")
        assert lost.reason == "the lease ended: expired"
        await until(lambda: _starts(world, 2), "the replica to start on another lease")
    assert await lease_of(database, world) != lease


async def test_a_pool_that_cannot_lease_fails_the_replica_with_its_reason(
    stack: Stack, world: World, attempts: Attempts, database: asyncpg.Connection
):
    async with controller(stack, world.engines, **LEASED | {"pool": "moon"}):
        await world.register()

        async def refused() -> str | None:
            reason: str | None = await database.fetchval(
                "SELECT reason FROM replica WHERE replica_id = $1 AND phase = 'lost'", world.replica
            )
            return reason

        assert await until(refused, "the start to fail") == "devices: unknown_pool: no pool moon"
    assert world.engines.starts_of(world.pool) == []


async def _extended(world: World) -> bool:
    return world.engines.extended.get(world.replica, 0) > 5


async def _starts(world: World, count: int) -> bool:
    return len(world.engines.starts_of(world.pool)) == count


async def _other(database: asyncpg.Connection, world: World, lease: str) -> str | None:
    query = "SELECT lease_id FROM held_lease WHERE subject = $1 AND lease_id <> $2 AND state = 'held'"
    other: str | None = await database.fetchval(query, world.replica, lease)
    return other
