"""Gates on nodes of a real Slurm and a real Kubernetes: Kafka, Postgres, S3 and the scoring child are real, over kills and losses."""

import signal
from collections.abc import AsyncIterator

import asyncpg
import pytest

from deploy.local.stack import Stack
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
from tests.integration.evaluator_world import World
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
from tests.integration.test_evaluator import Models, Setting, verdict_of
from tests.integration.test_evaluator_leases import ask_for_a_verdict, leases_of, until_known
from tests.waiting import until

pytestmark = [
    pytest.mark.stack,
    pytest.mark.torch,
    at_night("two minutes of processor time of clusters and of gates"),
]

models, setting = test_evaluator.models, test_evaluator.setting

PROGRAM = "services.evaluator.node"
ENV = {
    "EVALUATOR_SCORING_THREADS": "1",
    "EVALUATOR_MAX_NEW_TOKENS": "16",
    "EVALUATOR_SCORING_ATTEMPTS": "1",
    "EVALUATOR_POOL": "cluster",
    "EVALUATOR_ON_NODES": "true",
    "EVALUATOR_DEVICE_NAME": device_name("cpu"),
}


FIRST_QUESTIONS = {"slurm": 10, "kubernetes": 20}
"""Of the holdouts of a cluster's tests, and of no other file's: a verdict that is known already needs no node."""

cluster = pytest.fixture(cluster_of, scope="module", params=CLUSTERS)


@pytest.fixture(scope="module")
def env(stack: Stack, cluster: LeaseCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return provisioner_env_with(stack, tmp_path_factory.mktemp("scoring-nodes"), cluster)


@pytest.fixture(scope="module")
async def attempts(stack: Stack, env: dict[str, str]) -> AsyncIterator[Attempts]:
    async with attempts_on(stack, env) as attempts:
        yield attempts


@pytest.fixture(scope="module")
async def world(stack: Stack, attempts: Attempts) -> AsyncIterator[World]:
    await alive(stack, "evaluator", env=ENV)
    async with World.on(stack) as world:
        await until_known(stack, "cluster")
        yield world
    await stack.stop("evaluator")


async def ask(world: World, setting: Setting, models: Models, cluster: LeaseCluster, number: int):
    """Ask for a verdict that is not known from another test; its job. `number`: of the test."""
    return await ask_for_a_verdict(world, setting, models, first=FIRST_QUESTIONS[cluster.name] + number)


async def leased(attempts: Attempts, world: World, job_id: str, number: int = 1) -> DevicesLeased:
    """The job's lease, or the one after `number` - 1 others, once it has its node."""
    leases: dict[str, DevicesLeased] = {}

    async def is_there() -> bool:
        leases.update({fact.lease_id: fact for fact in leases_of(attempts, DevicesLeased, job_id, world)})
        return len(leases) >= number

    await until(is_there)
    return [*leases.values()][number - 1]


async def until_scoring(lease: DevicesLeased) -> Identity:
    """The process of the lease's node, once it runs."""
    name = lease_node_name(lease.lease_id)

    def runs() -> bool:
        return any(PROGRAM in command_of(each) for each in marked(mark_of(name)))

    await until(runs)
    return node_process(name, module=PROGRAM)


async def gone(cluster: LeaseCluster, lease: DevicesLeased) -> None:
    await until(lambda: not cluster.running(lease_node_name(lease.lease_id)))


def facts_of(world: World, job_id: str) -> list[type]:
    return [type(fact) for fact in world.about(job_id) if not isinstance(fact, EvalCheckCompleted)]


async def test_a_gate_waits_in_the_clusters_queue_and_is_scored_on_a_node(
    world: World, attempts: Attempts, cluster: LeaseCluster, setting: Setting, models: Models
):
    with cluster.blocked():
        job = await ask(world, setting, models, cluster, 0)
        delayed = await world.until(
            lambda event: isinstance(event, Delayed) and event.subject_id == job.job_id, "the wait"
        )
        expected = {words or "the queue of pool cluster" for words in cluster.queue_words}
        assert delayed.waiting_for.split(":")[0] in expected
    assert type(await verdict_of(world, job.job_id)) is EvalPassed
    # First without a reason, and with it where the cluster says one before there is room.
    queued = leases_of(attempts, DeviceLeaseQueued, job.job_id, world)
    lease = await leased(attempts, world, job.job_id)
    assert {fact.lease_id for fact in queued} == {lease.lease_id}
    ended = await attempts.until(lease.lease_id, DeviceLeaseEnded)
    assert ended.reason is LeaseEnd.RETURNED
    await gone(cluster, lease)
    assert world.progress_of(job.job_id), "people see how far it is"


async def test_an_evaluator_that_dies_anywhere_continues_on_the_same_node(
    world: World, attempts: Attempts, cluster: LeaseCluster, setting: Setting, models: Models, stack: Stack
):
    async with killed_at(stack, "evaluator", "eval.work.saved", env=ENV):
        job = await ask(world, setting, models, cluster, 1)
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
    cluster: LeaseCluster,
    setting: Setting,
    models: Models,
    stack: Stack,
    env: dict[str, str],
):
    async with killed_at(stack, "provisioner", "provider.create.after", env=env):
        job = await ask(world, setting, models, cluster, 2)
    await alive(stack, "provisioner", env=env)
    lease = await leased(attempts, world, job.job_id)
    node = await until_scoring(lease)
    node.signal_alone(signal.SIGKILL)
    ended = await attempts.until(lease.lease_id, DeviceLeaseEnded)
    assert ended.reason is LeaseEnd.NODE_ENDED
    assert type(await verdict_of(world, job.job_id)) is EvalPassed, "of one try"
    again = await leased(attempts, world, job.job_id, 2)
    assert again.lease_id != lease.lease_id
    await gone(cluster, again)


async def test_a_cancelled_jobs_node_ends_with_its_gate(
    world: World, attempts: Attempts, cluster: LeaseCluster, setting: Setting, models: Models
):
    job = await ask(world, setting, models, cluster, 3)
    lease = await leased(attempts, world, job.job_id)
    await until_scoring(lease)
    assert cluster.devices(lease_node_name(lease.lease_id)) == len(lease.devices) == 2
    artifact = Artifact.model_validate(job.model_dump())
    cancelled = JobCancelled(job_id=job.job_id, tenant=job.tenant, reason="user", artifact=artifact)
    await world.send("scheduler", cancelled)
    ended = await attempts.until(lease.lease_id, DeviceLeaseEnded)
    assert ended.reason is LeaseEnd.RETURNED
    await gone(cluster, lease)
    assert not list(marked(mark_of(lease_node_name(lease.lease_id))))
