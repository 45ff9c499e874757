"""The road of a job whose nodes are pods of Kubernetes."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from deploy.kubernetes.cluster import NAMESPACE, KubernetesCluster
from deploy.local.errors import MissingPart
from shared.env_file import read_env_file
from tests.chaos.scale import Scale, scale
from tests.e2e.clusters import Events, kill_all_of, run_through, with_pools
from tests.integration.kubernetes import PLACE, SECRET, blocked, pod_of, put_secret

pytestmark = [
    pytest.mark.stack,
    pytest.mark.skipif(scale() is Scale.CHANGE, reason="three minutes of processor time: at night"),
]

POOLS = """
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
requests = {{cpu = "8"}}
fenced_after_seconds = 30
"""


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesCluster]:
    try:
        cluster = KubernetesCluster(tmp_path_factory.mktemp("kubernetes"))
    except MissingPart as missing:
        pytest.skip(str(missing))
    with cluster:
        yield cluster


@pytest.fixture(scope="module")
async def pools(platform, kubernetes) -> AsyncIterator[None]:
    put_secret(kubernetes, SECRET, read_env_file(platform.stack.state.root / "runner.env"))
    text = POOLS.format(kubeconfig=kubernetes.provisioner, namespace=NAMESPACE, secret=SECRET)
    async with with_pools(platform, text):
        yield


async def test_a_gang_of_two_outlives_outages_and_losses_of_kubernetes(platform, kubernetes, pools):
    @asynccontextmanager
    async def outage(_: str) -> AsyncIterator[None]:
        for program in ("kube-controller-manager", "kube-apiserver"):
            kubernetes.kill(program)
        yield
        kubernetes.start_api_server()
        kubernetes.start_controllers()

    @asynccontextmanager
    async def loss(attempt: str) -> AsyncIterator[str]:
        pod = pod_of(kubernetes, attempt, 1)
        machine: str = kubernetes.request("GET", f"{PLACE}/pods/{pod}")["spec"]["nodeName"]
        kubernetes.kill(machine)
        kill_all_of(f"{attempt}-n1")
        yield machine
        kubernetes.start_node(machine)

    @asynccontextmanager
    async def taken_back(_: str) -> AsyncIterator[None]:
        with blocked(kubernetes, nodes=3):
            yield

    await run_through(platform, suffix="kubernetes", cluster=Events(outage, taken_back, loss))
