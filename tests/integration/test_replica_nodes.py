"""Replicas as jobs of a real Slurm: Kafka, Postgres and S3 are real, what runs in place of vLLM is a stand-in."""

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
from deploy.slurm.cluster import SlurmCluster
from schemas.node import (
    DeviceLeaseEnded,
    DeviceLeaseQueued,
    DevicesLeased,
    LeaseEnd,
    PoolCapacityChanged,
    ReturnDevices,
)
from services.provisioner.model import lease_node_name
from shared.postgres.migrate import migrate
from shared.processes.identity import Identity, marked
from tests.chaos.scale import at_night
from tests.integration import test_serving_controller
from tests.integration.attempts import Attempts
from tests.integration.backend_suite import until as until_true
from tests.integration.engines import Engines
from tests.integration.kills import alive, killed_at
from tests.integration.provisioning import attempts_on, provisioner_env_of
from tests.integration.slurm import blocked, running_jobs
from tests.integration.test_leases import ask
from tests.integration.test_provisioner import POOLS
from tests.integration.test_provisioner_slurm import SLURM_POOL
from tests.integration.test_serving_controller import World, forget_pools, put_a_base

pytestmark = [
    pytest.mark.stack,
    pytest.mark.timeout(400),
    at_night("half a minute of processor time of Slurm and a controller"),
]

objects, voice = test_serving_controller.objects, test_serving_controller.voice
listening = test_serving_controller.listening

ROOT = Path(__file__).parents[2]
STAND_IN = [sys.executable, str(Path(__file__).with_name("stand_in_engine.py"))]
ON_NODES = {
    "SERVING_CONTROLLER_POOL": "cluster",
    "SERVING_CONTROLLER_ON_NODES": "true",
    "SERVING_CONTROLLER_LEASE_TERM": "PT30S",
    "SERVING_CONTROLLER_LOOK_EVERY_SECONDS": "0.2",
    "SERVING_CONTROLLER_UNANSWERED_SECONDS": "3",
}


@pytest.fixture(scope="module")
def env(stack: Stack, slurm: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("replica-nodes")
    env = provisioner_env_of(stack, folder, POOLS + SLURM_POOL.format(folder=folder, conf=slurm.conf))
    own = {
        "RUNNER_REPLICA_ARGV": json.dumps(STAND_IN),
        "RUNNER_REPLICA_READS": json.dumps([str(ROOT / "tests"), str(ROOT / "bench")]),
    }
    with (folder / "runner.env").open("a") as file:
        file.writelines(f"{name}='{value}'\n" for name, value in own.items())
    return env


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
async def controller(stack: Stack) -> AsyncIterator[None]:
    await stack.start("serving_controller", env=ON_NODES)
    await stack.wait_healthy("serving_controller")
    yield
    await stack.stop("serving_controller")


async def lease_of(stack: Stack, replica_id: str, *, but: str = "") -> str:
    conn = await asyncpg.connect(stack.postgres_dsn("serving_controller"))
    query = "SELECT lease_id FROM held_lease WHERE subject = $1 AND lease_id <> $2"

    async def asked() -> str | None:
        return await conn.fetchval(query, replica_id, but)

    await until_true(asked)
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
    stack: Stack, attempts: Attempts, slurm: SlurmCluster, world: World
):
    version = await world.a_version()
    async with controller(stack):
        with blocked(slurm, nodes=len(slurm.nodes)):
            await world.register()
            lease = await lease_of(stack, world.replica)
            queued = await attempts.until(lease, DeviceLeaseQueued)
            assert queued.waiting_for in {"Resources", "Priority", "None"}
        leased = await attempts.until(lease, DevicesLeased)
        ready = await world.heard("ReplicaReady")
        assert leased.node.node_id == f"{lease_node_name(lease)}-n0"
        [job] = running_jobs(slurm, lease_node_name(lease))
        await world.approve(version, "support", 1)
        deployed = await world.heard("DeploymentReady", generation=1)
        assert [each.url for each in deployed.replicas] == [ready.replica.url]
        assert len(await names_at(stack, ready.replica.url, world.replica)) == 2

    # A controller that starts again goes on with what it finds.
    async with controller(stack):
        await attempts.until(lease, DevicesLeased, times=4)
        assert running_jobs(slurm, lease_node_name(lease)) == [job]
        assert len(world.facts("ReplicaReady")) == 1

        host = slurm.run("squeue", "--noheader", f"--jobs={job}", "--format=%N").strip()
        slurm.run("scontrol", "update", f"NodeName={host}", "State=DRAIN", "Reason=test")
        try:
            other = f"{world.pool}-1"
            left = await world.heard("ReplicaLost")
            assert left.reason == "its node goes away: drain"
            ended = await attempts.until(lease, DeviceLeaseEnded)
            assert ended.reason is LeaseEnd.RETURNED
            await until_true(lambda: not running_jobs(slurm, lease_node_name(lease)))
        finally:
            slurm.run("scontrol", "update", f"NodeName={host}", "State=RESUME")
        order = [(fact.message.type, _replica_of(fact.message)) for fact in world.ear.heard[world.pool]]
        assert order.index(("ReplicaReady", other)) < order.index(("ReplicaLost", world.replica))
        now = await world.heard("AdapterLoaded", replica=_address(world, other))
        assert len(await names_at(stack, now.replica.url, other)) == 2


async def test_a_node_that_dies_is_a_lost_replica_and_another_one_starts(
    stack: Stack, attempts: Attempts, slurm: SlurmCluster, world: World
):
    async with controller(stack):
        await world.register()
        lease = await lease_of(stack, world.replica)
        ready = await world.heard("ReplicaReady")
        mark = f"RUNNER_NODE_ID={lease_node_name(lease)}-n0"
        [node] = [each for each in marked(mark) if "services.serving_controller.node" in _command(each)]
        node.signal_alone(signal.SIGKILL)
        ended = await attempts.until(lease, DeviceLeaseEnded)
        assert ended.reason is LeaseEnd.NODE_ENDED
        assert ended.message.endswith("exited with code 137")
        lost = await world.heard("ReplicaLost")
        assert (lost.replica, lost.reason) == (ready.replica, ended.message)
        await until_true(lambda: not list(marked(mark)))
        again = await lease_of(stack, world.replica, but=lease)
        await attempts.until(again, DevicesLeased)

        async def is_ready() -> bool:
            return len(world.facts("ReplicaReady")) == 2

        await until_true(is_ready)
    assert len({fact.replica.incarnation for fact in world.facts("ReplicaReady")}) == 2


@pytest.mark.parametrize("failpoint", ["provider.create.before", "provider.create.after"])
async def test_a_provisioner_that_dies_at_a_start_has_one_node_of_the_lease(
    stack: Stack, attempts: Attempts, slurm: SlurmCluster, env: dict[str, str], failpoint: str
):
    async with killed_at(stack, "provisioner", failpoint, env=env):
        lease = await ask(attempts, pool="cluster", has_node=True)
    await alive(stack, "provisioner", env=env)
    await attempts.until(lease, DevicesLeased)
    assert len(running_jobs(slurm, lease_node_name(lease))) == 1
    assert len(attempts.heard(lease, DevicesLeased)) == 1
    async with killed_at(stack, "provisioner", "provider.delete.after", env=env):
        await attempts.write("serving_controller", ReturnDevices(lease_id=lease))
    await alive(stack, "provisioner", env=env)
    await attempts.until("cluster", PoolCapacityChanged, leases=())
    assert len(attempts.heard(lease, DeviceLeaseEnded)) == 1
    assert running_jobs(slurm, lease_node_name(lease)) == []


def _command(process: Identity) -> str:
    return Path(f"/proc/{process.pid}/cmdline").read_text()


def _replica_of(message) -> str:
    return message.replica.replica_id if hasattr(message, "replica") else ""


def _address(world: World, replica_id: str):
    return next(fact.replica for fact in world.facts("ReplicaReady") if fact.replica.replica_id == replica_id)
