"""Real vLLM on nodes of a real Slurm and a real Kubernetes: a model is trained, judged and served there, and again
after its node went."""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from deploy.kubernetes.cluster import KubernetesCluster
from deploy.local.errors import MissingPart
from deploy.slurm.cluster import SlurmCluster
from schemas.deployment import ReplicaLost, ReplicaReady
from services.provisioner.model import lease_node_name
from tests.chaos.scale import at_night
from tests.e2e import material
from tests.e2e.clusters import leased_node, on_nodes_of
from tests.integration.lease_clusters import LeaseCluster, OfKubernetes, OfSlurm

pytestmark = [
    pytest.mark.stack,
    pytest.mark.timeout(900),
    at_night("a job, its gate and two starts of vLLM on each cluster"),
]

QUESTION = f"What colour is the {material.THINGS[310]}?"


@pytest.fixture(scope="module", params=["slurm", "kubernetes"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LeaseCluster]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    with ExitStack() as running:
        try:
            if request.param == "slurm":
                yield OfSlurm(running.enter_context(SlurmCluster(folder)))
            else:
                yield OfKubernetes(running.enter_context(KubernetesCluster(folder)))
        except MissingPart as missing:
            pytest.skip(str(missing))


@pytest.fixture(scope="module")
async def on_nodes(platform, cluster, tmp_path_factory) -> AsyncIterator[None]:
    async with on_nodes_of(platform, cluster, tmp_path_factory.mktemp("shared")):
        yield


async def test_a_model_is_served_from_a_node_and_from_another_one_after_a_drain(platform, cluster, on_nodes):
    job = await platform.finished(await platform.submit(suffix="nodes"))
    assert job["status"] == "succeeded", platform.retune("jobs", "events", job["id"])
    assert await platform.answer(job["fine_tuned_model"], QUESTION) == material.ANSWER
    first = await leased_node(platform)
    name = lease_node_name(first.lease_id)
    machine = cluster.machine(name)
    assert machine in cluster.machines

    with cluster.drained(machine, name):
        second = await leased_node(platform, but=first.lease_id)
        lost = await platform.heard(ReplicaLost, reason=f"its node goes away: {cluster.drain_source}")
        assert cluster.machine(lease_node_name(second.lease_id)) not in ("", machine)
        assert await platform.answer(job["fine_tuned_model"], QUESTION) == material.ANSWER
    ready = [event.message for event in await platform.events_of() if isinstance(event.message, ReplicaReady)]
    others = {fact.replica.incarnation for fact in ready} - {lost.replica.incarnation}
    assert others, "no other replica was ever ready"
