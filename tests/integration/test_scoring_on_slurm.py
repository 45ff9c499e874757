"""Gates as jobs of a real Slurm: Kafka, Postgres, S3 and the scoring child are real, over kills and losses."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from deploy.local.stack import Stack
from deploy.slurm.cluster import SlurmCluster
from schemas.base import Delayed
from schemas.evaluation import EvalCheckCompleted, EvalPassed, EvalStarted
from schemas.job import Artifact, JobCancelled
from schemas.node import DeviceLeaseEnded, DeviceLeaseQueued, DevicesLeased, LeaseEnd
from services.provisioner.model import lease_node_name
from shared.device import device_name
from shared.processes.identity import Identity, marked
from tests.chaos.scale import at_night
from tests.integration import test_evaluator
from tests.integration.attempts import Attempts
from tests.integration.backend_suite import until as until_true
from tests.integration.evaluator_world import World
from tests.integration.kills import alive, killed_at
from tests.integration.provisioning import attempts_on, provisioner_env_of
from tests.integration.slurm import blocked, running_jobs
from tests.integration.test_evaluator import Models, Setting, verdict_of
from tests.integration.test_evaluator_leases import ask_for_a_verdict, leases_of
from tests.integration.test_provisioner import POOLS
from tests.integration.test_provisioner_slurm import SLURM_POOL

pytestmark = [
    pytest.mark.stack,
    pytest.mark.torch,
    pytest.mark.timeout(900),
    at_night("two minutes of processor time of Slurm and of gates"),
]

models, setting = test_evaluator.models, test_evaluator.setting

ENV = {
    "EVALUATOR_SCORING_THREADS": "1",
    "EVALUATOR_MAX_NEW_TOKENS": "16",
    "EVALUATOR_SCORING_ATTEMPTS": "1",
    "EVALUATOR_POOL": "cluster",
    "EVALUATOR_ON_NODES": "true",
    "EVALUATOR_DEVICE_NAME": device_name("cpu"),
    "EVALUATOR_LEASE_TERM": "PT60S",
}


@pytest.fixture(scope="module")
def env(stack: Stack, slurm: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("scoring-nodes")
    return provisioner_env_of(stack, folder, POOLS + SLURM_POOL.format(folder=folder, conf=slurm.conf))


@pytest.fixture(scope="module")
async def attempts(stack: Stack, env: dict[str, str]) -> AsyncIterator[Attempts]:
    async with attempts_on(stack, env) as attempts:
        yield attempts


@pytest.fixture(scope="module")
async def world(stack: Stack, attempts: Attempts) -> AsyncIterator[World]:
    await alive(stack, "evaluator", env=ENV)
    async with World.on(stack) as world:
        yield world
    await stack.stop("evaluator")


async def leased(attempts: Attempts, world: World, job_id: str, number: int = 1) -> DevicesLeased:
    """The job's lease, or the one after `number` - 1 others, once it has its node."""
    leases: dict[str, DevicesLeased] = {}

    async def is_there() -> bool:
        leases.update({fact.lease_id: fact for fact in leases_of(attempts, DevicesLeased, job_id, world)})
        return len(leases) >= number

    await until_true(is_there, seconds=240.0)
    return [*leases.values()][number - 1]


async def until_scoring(lease: DevicesLeased) -> list[Identity]:
    """The processes of the lease's node, once one of them scores."""
    assert lease.node is not None
    mark = f"RUNNER_NODE_ID={lease.node.node_id}"

    def node() -> list[Identity]:
        return [each for each in marked(mark) if "services.evaluator.node" in _command(each)]

    await until_true(lambda: bool(node()), seconds=120.0)
    return node()


async def gone(slurm: SlurmCluster, lease: DevicesLeased) -> None:
    await until_true(lambda: not running_jobs(slurm, lease_node_name(lease.lease_id)), seconds=120.0)


def facts_of(world: World, job_id: str) -> list[type]:
    return [type(fact) for fact in world.about(job_id) if not isinstance(fact, EvalCheckCompleted)]


async def test_a_gate_waits_in_slurms_queue_and_is_scored_on_a_node(
    world: World, attempts: Attempts, slurm: SlurmCluster, setting: Setting, models: Models
):
    with blocked(slurm, nodes=len(slurm.nodes)):
        job = await ask_for_a_verdict(world, setting, models, first=0)
        delayed = await world.until(
            lambda event: isinstance(event, Delayed) and event.subject_id == job.job_id, "the wait"
        )
        assert delayed.waiting_for in {"Resources", "Priority", "None"}
    assert type(await verdict_of(world, job.job_id)) is EvalPassed
    [queued] = leases_of(attempts, DeviceLeaseQueued, job.job_id, world)
    lease = await leased(attempts, world, job.job_id)
    assert queued.lease_id == lease.lease_id
    ended = await attempts.until(lease.lease_id, DeviceLeaseEnded)
    assert ended.reason is LeaseEnd.RETURNED
    await gone(slurm, lease)
    assert world.progress_of(job.job_id), "people see how far it is"


async def test_an_evaluator_that_dies_anywhere_continues_on_the_same_node(
    world: World, attempts: Attempts, slurm: SlurmCluster, setting: Setting, models: Models, stack: Stack
):
    async with killed_at(stack, "evaluator", "eval.work.saved", env=ENV):
        job = await ask_for_a_verdict(world, setting, models, first=1)
    for failpoint in ("eval.devices.leased", "eval.outcome.read", "eval.verdict.before"):
        async with killed_at(stack, "evaluator", failpoint, env=ENV):
            pass
    await alive(stack, "evaluator", env=ENV)
    assert type(await verdict_of(world, job.job_id)) is EvalPassed
    assert facts_of(world, job.job_id) == [EvalStarted, EvalPassed]
    leases = {fact.lease_id for fact in leases_of(attempts, DevicesLeased, job.job_id, world)}
    assert len(leases) == 1, "it was scored once"
    evals = {fact.eval_id for fact in world.about(job.job_id)}
    conn = await asyncpg.connect(stack.postgres_dsn("evaluator"))
    assert await conn.fetchval("SELECT count(*) FROM scoring_node WHERE eval_id = ANY($1)", [*evals]) == 0
    await conn.close()


async def test_a_lost_node_and_a_killed_provisioner_cost_no_try(
    world: World,
    attempts: Attempts,
    slurm: SlurmCluster,
    setting: Setting,
    models: Models,
    stack: Stack,
    env: dict[str, str],
):
    async with killed_at(stack, "provisioner", "provider.create.after", env=env):
        job = await ask_for_a_verdict(world, setting, models, first=2)
    await alive(stack, "provisioner", env=env)
    lease = await leased(attempts, world, job.job_id)
    [node] = await until_scoring(lease)
    node.signal_alone(signal.SIGKILL)
    ended = await attempts.until(lease.lease_id, DeviceLeaseEnded)
    assert ended.reason is LeaseEnd.NODE_ENDED
    assert type(await verdict_of(world, job.job_id)) is EvalPassed, "of one try"
    again = await leased(attempts, world, job.job_id, 2)
    assert again.lease_id != lease.lease_id
    await gone(slurm, again)


async def test_a_cancelled_jobs_node_ends_with_its_gate(
    world: World, attempts: Attempts, slurm: SlurmCluster, setting: Setting, models: Models
):
    job = await ask_for_a_verdict(world, setting, models, first=3)
    lease = await leased(attempts, world, job.job_id)
    await until_scoring(lease)
    artifact = Artifact.model_validate(job.model_dump())
    cancelled = JobCancelled(job_id=job.job_id, tenant=job.tenant, reason="user", artifact=artifact)
    await world.send("scheduler", cancelled)
    ended = await attempts.until(lease.lease_id, DeviceLeaseEnded)
    assert ended.reason is LeaseEnd.RETURNED
    await gone(slurm, lease)
    assert not list(marked(f"RUNNER_NODE_ID={lease.node.node_id}"))


def _command(process: Identity) -> str:
    return Path(f"/proc/{process.pid}/cmdline").read_text()
