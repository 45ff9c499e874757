"""The provisioner with a pool of Kubernetes: real runners as pods, on real Kafka, Postgres and a control plane."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deploy.kubernetes.cluster import NAMESPACE, KubernetesCluster
from deploy.local.stack import Stack
from schemas.job import JobScheduled, StopReason
from schemas.node import (
    NodeLost,
    NodePreempted,
    NodesProvisioned,
    NodesQueued,
    NodesReleased,
)
from schemas.training import TrainingStopped
from shared.env_file import read_env_file
from shared.processes.identity import marked
from tests.chaos.scale import Scale, scale
from tests.integration.attempts import Attempts
from tests.integration.kubernetes import cordoned, evict, jobs_of, pod_of, pods_of, put_secret
from tests.integration.provisioning import attempts_on, provisioner_env_of
from tests.integration.test_provisioner import name_of, training
from tests.waiting import until

pytestmark = pytest.mark.stack

SECRET = "runner-of-the-stack"
POOL = """
[pools.cluster]
capacity_type = "spot"
device = "cpu"
nodes = 3
price_per_device_hour = 0.10
backend = "kubernetes"

[pools.cluster.kubernetes]
kubeconfig = "{kubeconfig}"
namespace = "{namespace}"
image = "retune/trainer"
secret = "{secret}"
lost_after_seconds = 1
fenced_after_seconds = 30
"""


@pytest.fixture(scope="module")
def env(
    stack: Stack, kubernetes: KubernetesCluster, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    folder: Path = tmp_path_factory.mktemp("provisioner")
    pools = POOL.format(kubeconfig=kubernetes.provisioner, namespace=NAMESPACE, secret=SECRET)
    env = provisioner_env_of(stack, folder, pools, save_seconds=1.0)
    put_secret(kubernetes, SECRET, read_env_file(folder / "runner.env"))
    return env


@pytest.fixture(scope="module")
async def attempts(stack: Stack, env: dict[str, str]) -> AsyncIterator[Attempts]:
    async with attempts_on(stack, env) as attempts:
        yield attempts


def reason_of(attempts: Attempts, scheduled: JobScheduled) -> str:
    """Why Kubernetes says that it waits, as announced last."""
    queued = attempts.heard(scheduled.job_id, NodesQueued, pool="cluster")
    return queued[-1].waiting_for if queued else ""


async def test_a_gang_waits_runs_is_evicted_with_notice_and_is_released(stack, attempts, kubernetes, env):
    with cordoned(kubernetes, *kubernetes.nodes[1:]):
        scheduled = await attempts.schedule(pool="cluster", nodes=2)
        await until(lambda: "nodes are available" in reason_of(attempts, scheduled))
    await training(attempts, scheduled)
    await stack.stop("provisioner")
    name = name_of(scheduled)
    evict(kubernetes, pod_of(kubernetes, name, 1))
    await stack.start("provisioner", env=env)
    preempted = await attempts.until(scheduled.job_id, NodePreempted)
    assert (preempted.node_id, preempted.source) == (f"{name}-n1", "eviction")
    await attempts.stop(scheduled, seconds=20, reason=StopReason.PREEMPT)
    stopped = await attempts.until(scheduled.job_id, TrainingStopped)
    assert stopped.bundle.step == stopped.last_step
    released = await attempts.until(scheduled.job_id, NodesReleased)
    hosts = [node.host for node in released.nodes]
    assert len(set(hosts)) == 2
    assert set(hosts) <= set(kubernetes.nodes)
    assert attempts.heard(scheduled.job_id, NodeLost) == []
    assert len(attempts.heard(scheduled.job_id, NodesProvisioned)) == 1
    await until(lambda: not jobs_of(kubernetes, name) and not pods_of(kubernetes, name), every=0.25)


@pytest.mark.skipif(scale() is Scale.CHANGE, reason="of a lost machine the backend's tests know: at night")
async def test_a_lost_machine_is_named_and_its_runner_hears_of_the_stop(attempts, kubernetes):
    scheduled = await attempts.schedule(pool="cluster")
    await training(attempts, scheduled)
    name = name_of(scheduled)
    [pod] = pods_of(kubernetes, name)
    machine = pod["spec"]["nodeName"]
    kubernetes.kill(machine)
    try:
        lost = await attempts.until(scheduled.job_id, NodeLost)
        assert (lost.host, lost.node_id) == (machine, f"{name}-n0")
        assert list(marked(f"RUNNER_NODE_ID={name}-n0")), "no kubelet ends it"
        await attempts.stop(scheduled, seconds=5)
        await until(lambda: not list(marked(f"RUNNER_NODE_ID={name}-n0")), every=0.25)
    finally:
        kubernetes.start_node(machine)
    await attempts.until(scheduled.job_id, NodesReleased)
