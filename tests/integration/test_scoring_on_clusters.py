"""Gates on nodes of a real Slurm and a real Kubernetes: Kafka, Postgres, S3 and the scoring child are real, over kills and losses."""

import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import asyncpg
import pytest

from deploy.kubernetes.cluster import NAMESPACE, KubernetesCluster
from deploy.local.stack import Stack
from deploy.slurm.cluster import SlurmCluster
from schemas.base import Delayed
from schemas.evaluation import EvalCheckCompleted, EvalPassed, EvalStarted
from schemas.job import Artifact, JobCancelled
from schemas.node import DeviceLeaseEnded, DeviceLeaseQueued, DevicesLeased, LeaseEnd
from services.provisioner.model import lease_node_name
from shared.device import device_name
from shared.env_file import read_env_file
from shared.processes.identity import Identity, marked
from tests.chaos.scale import at_night
from tests.integration import test_evaluator
from tests.integration.attempts import Attempts
from tests.integration.backend_suite import until as until_true
from tests.integration.evaluator_world import World
from tests.integration.kills import alive, killed_at
from tests.integration.kubernetes import cordoned, pods_of, put_secret
from tests.integration.provisioning import attempts_on, provisioner_env_of
from tests.integration.slurm import blocked, running_jobs
from tests.integration.test_evaluator import Models, Setting, verdict_of
from tests.integration.test_evaluator_leases import ask_for_a_verdict, leases_of
from tests.integration.test_provisioner import POOLS
from tests.integration.test_provisioner_kubernetes import POOL as KUBERNETES_POOL
from tests.integration.test_provisioner_slurm import SLURM_POOL

pytestmark = [
    pytest.mark.stack,
    pytest.mark.torch,
    pytest.mark.timeout(900),
    at_night("two minutes of processor time of clusters and of gates"),
]

models, setting = test_evaluator.models, test_evaluator.setting

SECRET = "scoring-nodes"
ENV = {
    "EVALUATOR_SCORING_THREADS": "1",
    "EVALUATOR_MAX_NEW_TOKENS": "16",
    "EVALUATOR_SCORING_ATTEMPTS": "1",
    "EVALUATOR_POOL": "cluster",
    "EVALUATOR_ON_NODES": "true",
    "EVALUATOR_DEVICE_NAME": device_name("cpu"),
    "EVALUATOR_LEASE_TERM": "PT60S",
}


@dataclass(frozen=True)
class Cluster:
    """What a test asks of the cluster whose machines the pool `cluster` has."""

    pool: Callable[[Path], str]
    """Returns its table; given the folder that machines share."""
    blocked: Callable[[], AbstractContextManager[None]]
    """Nothing starts meanwhile."""
    running: Callable[[str], Sequence[object]]
    """Returns what the cluster has of a node."""
    words: frozenset[str]
    """Beginnings of what a node waits for while `blocked`."""
    give: Callable[[Path], object] = lambda env_file: None
    """Gives nodes the variables of this file, where they do not read it themselves."""


def of_slurm(slurm: SlurmCluster) -> Cluster:
    return Cluster(
        pool=lambda folder: SLURM_POOL.format(folder=folder, conf=slurm.conf),
        blocked=partial(blocked, slurm, nodes=len(slurm.nodes)),
        running=partial(running_jobs, slurm),
        words=frozenset({"Resources", "Priority", "None"}),
    )


def of_kubernetes(kubernetes: KubernetesCluster) -> Cluster:
    place = {"kubeconfig": kubernetes.provisioner, "namespace": NAMESPACE, "secret": SECRET}
    return Cluster(
        pool=lambda folder: KUBERNETES_POOL.format(**place),
        blocked=partial(cordoned, kubernetes, *kubernetes.nodes),
        running=partial(pods_of, kubernetes),
        words=frozenset({"the queue of pool cluster", "0/3 nodes are available"}),
        give=lambda env_file: put_secret(kubernetes, SECRET, read_env_file(env_file)),
    )


@pytest.fixture(scope="module", params=["slurm", "kubernetes"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    real = request.getfixturevalue(request.param)
    return of_slurm(real) if request.param == "slurm" else of_kubernetes(real)


@pytest.fixture(scope="module")
def env(stack: Stack, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("scoring-nodes")
    env = provisioner_env_of(stack, folder, POOLS + cluster.pool(folder))
    cluster.give(folder / "runner.env")
    return env


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


async def gone(cluster: Cluster, lease: DevicesLeased) -> None:
    await until_true(lambda: not cluster.running(lease_node_name(lease.lease_id)), seconds=120.0)


def facts_of(world: World, job_id: str) -> list[type]:
    return [type(fact) for fact in world.about(job_id) if not isinstance(fact, EvalCheckCompleted)]


async def test_a_gate_waits_in_the_clusters_queue_and_is_scored_on_a_node(
    world: World, attempts: Attempts, cluster: Cluster, setting: Setting, models: Models
):
    with cluster.blocked():
        job = await ask_for_a_verdict(world, setting, models, first=0)
        delayed = await world.until(
            lambda event: isinstance(event, Delayed) and event.subject_id == job.job_id, "the wait"
        )
        assert delayed.waiting_for.split(":")[0] in cluster.words
    assert type(await verdict_of(world, job.job_id)) is EvalPassed
    [queued] = leases_of(attempts, DeviceLeaseQueued, job.job_id, world)
    lease = await leased(attempts, world, job.job_id)
    assert queued.lease_id == lease.lease_id
    ended = await attempts.until(lease.lease_id, DeviceLeaseEnded)
    assert ended.reason is LeaseEnd.RETURNED
    await gone(cluster, lease)
    assert world.progress_of(job.job_id), "people see how far it is"


async def test_an_evaluator_that_dies_anywhere_continues_on_the_same_node(
    world: World, attempts: Attempts, cluster: Cluster, setting: Setting, models: Models, stack: Stack
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
    cluster: Cluster,
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
    await gone(cluster, again)


async def test_a_cancelled_jobs_node_ends_with_its_gate(
    world: World, attempts: Attempts, cluster: Cluster, setting: Setting, models: Models
):
    job = await ask_for_a_verdict(world, setting, models, first=3)
    lease = await leased(attempts, world, job.job_id)
    await until_scoring(lease)
    artifact = Artifact.model_validate(job.model_dump())
    cancelled = JobCancelled(job_id=job.job_id, tenant=job.tenant, reason="user", artifact=artifact)
    await world.send("scheduler", cancelled)
    ended = await attempts.until(lease.lease_id, DeviceLeaseEnded)
    assert ended.reason is LeaseEnd.RETURNED
    await gone(cluster, lease)
    assert not list(marked(f"RUNNER_NODE_ID={lease.node.node_id}"))


def _command(process: Identity) -> str:
    return Path(f"/proc/{process.pid}/cmdline").read_text()
