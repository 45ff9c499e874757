"""Replicas as nodes of a real Slurm and a real Kubernetes: Kafka, Postgres and S3 are real, what runs in place of vLLM
is a stand-in."""

import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import httpx
import pytest

from deploy.local.stack import Stack
from schemas.node import (
    DeviceLeaseEnded,
    DeviceLeaseQueued,
    DevicesLeased,
    LeaseEnd,
    LeaseFailure,
    PoolCapacityChanged,
    ReturnDevices,
)
from services.provisioner.model import lease_node_name
from shared.postgres.migrate import migrate
from shared.processes.identity import marked
from tests.chaos.scale import at_night
from tests.integration import test_serving_controller
from tests.integration.attempts import Attempts
from tests.integration.engines import Engines
from tests.integration.kills import alive, killed_at
from tests.integration.lease_clusters import (
    CLUSTERS,
    LeaseCluster,
    cluster_of,
    command_of,
    mark_of,
    node_process,
    provisioner_env_with,
)
from tests.integration.provisioning import attempts_on
from tests.integration.test_leases import ask
from tests.integration.test_serving_controller import World, forget_pools, put_a_base
from tests.waiting import until

pytestmark = [
    pytest.mark.stack,
    at_night("half a minute of processor time of Slurm and a controller"),
]

objects, voice = test_serving_controller.objects, test_serving_controller.voice
listening = test_serving_controller.listening

ROOT = Path(__file__).parents[2]
STAND_IN = [sys.executable, str(Path(__file__).with_name("stand_in_engine.py"))]
PROGRAM = "services.serving_controller.node"
ON_NODES = {
    "SERVING_CONTROLLER_POOL": "cluster",
    "SERVING_CONTROLLER_ON_NODES": "true",
    "SERVING_CONTROLLER_LEASE_TERM": "PT30S",
    "SERVING_CONTROLLER_LOOK_EVERY_SECONDS": "0.2",
    "SERVING_CONTROLLER_UNANSWERED_SECONDS": "30",
}


cluster = pytest.fixture(cluster_of, scope="module", params=CLUSTERS)


@pytest.fixture(scope="module")
def env(stack: Stack, cluster: LeaseCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return provisioner_env_with(
        stack,
        tmp_path_factory.mktemp("replica-nodes"),
        cluster,
        RUNNER_REPLICA_ARGV=json.dumps(STAND_IN),
        RUNNER_REPLICA_READS=json.dumps([str(ROOT / "tests"), str(ROOT / "bench")]),
    )


@pytest.fixture(scope="module")
async def attempts(stack: Stack, env: dict[str, str]) -> AsyncIterator[Attempts]:
    async with attempts_on(stack, env) as attempts:
        yield attempts


@pytest.fixture
async def world(stack, objects, tmp_path, voice, listening) -> World:
    await migrate("serving_controller", stack.postgres_dsn("serving_controller"))
    await forget_pools(stack)
    base_sha = await put_a_base(objects, tmp_path / "base")
    return World(voice, listening, Engines(tmp_path / "replicas"), objects, base_sha, tmp_path)


@asynccontextmanager
async def controller(stack: Stack, **more: str) -> AsyncIterator[None]:
    await stack.start("serving_controller", env=ON_NODES | more)
    await stack.wait_healthy("serving_controller")
    try:
        yield
    finally:
        await stack.stop("serving_controller")


async def lease_of(stack: Stack, replica_id: str, *, but: str = "") -> str:
    conn = await asyncpg.connect(stack.postgres_dsn("serving_controller"))
    query = "SELECT lease_id FROM held_lease WHERE subject = $1 AND lease_id <> $2"

    async def asked() -> str | None:
        return await conn.fetchval(query, replica_id, but)

    await until(asked)
    lease_id = await asked()
    await conn.close()
    assert lease_id
    return lease_id


async def names_at(stack: Stack, url: str, replica_id: str) -> list[str]:
    key = (stack.state.root / "replicas" / replica_id / "management-key").read_text()
    async with httpx.AsyncClient() as http:
        answer = await http.get(f"{url}/v1/models", headers={"authorization": f"Bearer {key}"})
    return [each["id"] for each in answer.json()["data"]]


async def test_a_model_is_deployed_on_a_node_and_on_another_one_after_a_notice(
    stack: Stack, attempts: Attempts, cluster: LeaseCluster, world: World
):
    version = await world.a_version()
    async with controller(stack):
        with cluster.blocked():
            await world.register()
            lease = await lease_of(stack, world.replica)
            name = lease_node_name(lease)
            queued = await attempts.until(lease, DeviceLeaseQueued)
            assert queued.waiting_for.split(":")[0] in cluster.queue_words
        leased = await attempts.until(lease, DevicesLeased)
        ready = await world.heard("ReplicaReady")
        assert leased.node.node_id == f"{name}-n0"
        [job] = cluster.running(name)
        await world.approve(version, "support", 1)
        deployed = await world.heard("DeploymentReady", generation=1)
        assert [each.url for each in deployed.replicas] == [ready.replica.url]
        assert len(await names_at(stack, ready.replica.url, world.replica)) == 2

        # Services that die and start again go on with what they find.
        for service in ("serving_controller", "provisioner"):
            await stack.kill(service)
            await stack.wait_healthy(service)
        extended = len(attempts.heard(lease, DevicesLeased)) + 1
        await attempts.until(lease, DevicesLeased, times=extended)
        assert cluster.running(name) == [job]
        assert len(world.facts("ReplicaReady")) == 1

        machine = cluster.machine(name)
        with cluster.drained(machine, name):
            other = f"{world.pool}-1"
            left = await world.heard("ReplicaLost")
            assert left.reason == f"its node goes away: {cluster.drain_source}"
            ended = await attempts.until(lease, DeviceLeaseEnded)
            assert ended.reason is LeaseEnd.RETURNED
            await until(lambda: not cluster.running(name), every=0.25)
        order = [(fact.message.type, _replica_of(fact.message)) for fact in world.ear.heard[world.pool]]
        assert order.index(("ReplicaReady", other)) < order.index(("ReplicaLost", world.replica))
        now = await world.heard("AdapterLoaded", replica=_address(world, other))
        assert len(await names_at(stack, now.replica.url, other)) == 2
        last = lease_node_name(await lease_of(stack, other))
        assert cluster.machine(last) != machine
    # Whoever leaves no controller leaves its replicas, which end with their lease.
    await until(lambda: not list(marked(mark_of(name))), every=0.25)


async def test_a_node_that_dies_is_a_lost_replica_and_another_one_starts(
    stack: Stack, attempts: Attempts, cluster: LeaseCluster, world: World
):
    async with controller(stack):
        await world.register()
        lease = await lease_of(stack, world.replica)
        ready = await world.heard("ReplicaReady")
        machine = cluster.machine(lease_node_name(lease))
        node_process(lease_node_name(lease), module=PROGRAM).signal_alone(signal.SIGKILL)
        ended = await attempts.until(lease, DeviceLeaseEnded)
        assert ended.reason is LeaseEnd.NODE_ENDED
        assert ended.message.endswith("exited with code 137")
        lost = await world.heard("ReplicaLost")
        assert (lost.replica, lost.reason) == (ready.replica, ended.message)
        await until(lambda: not list(marked(mark_of(lease_node_name(lease)))), every=0.25)
        again = await lease_of(stack, world.replica, but=lease)
        await attempts.until(again, DevicesLeased)

        async def is_ready() -> bool:
            return len(world.facts("ReplicaReady")) == 2

        await until(is_ready)
        assert cluster.machine(lease_node_name(again)) != machine
        failure = await failure_of(attempts, lease)
        assert (failure.machine, failure.has_lost_machine) == (machine, False)
    assert len({fact.replica.incarnation for fact in world.facts("ReplicaReady")}) == 2


async def failure_of(attempts: Attempts, lease: str, *, lost: bool = False) -> LeaseFailure:
    """Wait until the pool announces what failed under the lease, and that its machine was lost if that is asked for."""
    failures: list[LeaseFailure] = []

    def is_announced() -> bool:
        known = {
            each.node_id: each
            for fact in attempts.heard("cluster", PoolCapacityChanged)
            for each in fact.lease_failures
            if each.lease_id == lease and each.has_lost_machine >= lost
        }
        failures.extend(known.values())
        return bool(failures)

    await until(is_announced, every=0.25)
    [failure] = failures
    return failure


async def test_a_machine_that_is_lost_under_a_replica_is_in_the_record_once(
    stack: Stack, attempts: Attempts, cluster: LeaseCluster, world: World
):
    async with controller(stack):
        await world.register()
        lease = await lease_of(stack, world.replica)
        await world.heard("ReplicaReady")
        name = lease_node_name(lease)
        machine = cluster.machine(name)
        with cluster.lost(machine):
            await attempts.until(lease, DeviceLeaseEnded)
            await world.heard("ReplicaLost")
            failure = await failure_of(attempts, lease, lost=True)
            assert failure.machine == machine
            assert (failure.holder, failure.purpose) == ("serving_controller", "serving")
            again = await lease_of(stack, world.replica, but=lease)
            await attempts.until(again, DevicesLeased)
            await until(lambda: cluster.machine(lease_node_name(again)) not in ("", machine), every=0.25)
        newest = attempts.heard("cluster", PoolCapacityChanged)[-1].lease_failures
        assert [each.machine for each in newest if each.lease_id == lease] == [machine]


async def test_a_replica_of_two_devices_has_a_node_with_two_and_shares_its_model_over_them(
    stack: Stack, cluster: LeaseCluster, world: World
):
    two = {"SERVING_CONTROLLER_DEVICES_PER_REPLICA": "2", "SERVING_CONTROLLER_ONE_PROCESS": "false"}
    async with controller(stack, **two):
        await world.register()
        name = lease_node_name(await lease_of(stack, world.replica))
        await world.heard("ReplicaReady")
        assert cluster.devices(name) == 2
        options = [word for each in marked(mark_of(name)) for word in command_of(each)]
        assert "--tensor-parallel-size=2" in options


@pytest.mark.parametrize("failpoint", ["provider.create.before", "provider.create.after"])
async def test_a_provisioner_that_dies_at_a_start_has_one_node_of_the_lease(
    stack: Stack, attempts: Attempts, cluster: LeaseCluster, env: dict[str, str], failpoint: str
):
    async with killed_at(stack, "provisioner", failpoint, env=env):
        lease = await ask(attempts, pool="cluster", has_node=True)
    await alive(stack, "provisioner", env=env)
    await attempts.until(lease, DevicesLeased)
    name = lease_node_name(lease)
    await until(lambda: bool(cluster.machine(name)), every=0.25)
    assert len(cluster.running(name)) == 1
    async with killed_at(stack, "provisioner", "provider.delete.after", env=env):
        await attempts.write("serving_controller", ReturnDevices(lease_id=lease))
    await alive(stack, "provisioner", env=env)
    await until(lambda: not cluster.running(name), every=0.25)
    assert len(attempts.heard(lease, DeviceLeaseEnded)) == 1


def _replica_of(message) -> str:
    return message.replica.replica_id if hasattr(message, "replica") else ""


def _address(world: World, replica_id: str):
    return next(fact.replica for fact in world.facts("ReplicaReady") if fact.replica.replica_id == replica_id)
