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
from tests.e2e.clusters import new_lease, on_nodes_of, replica_leases
from tests.e2e.conftest import Platform
from tests.integration.lease_clusters import LeaseCluster, OfKubernetes, OfSlurm

pytestmark = [
    pytest.mark.stack,
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
async def earlier(platform, cluster, tmp_path_factory) -> AsyncIterator[frozenset[str]]:
    """The platform's replicas are on nodes of the cluster. Yields the leases of replicas on a cluster before it."""
    leases = frozenset(await replica_leases(platform))
    async with on_nodes_of(platform, cluster, tmp_path_factory.mktemp("shared")):
        yield leases


async def test_a_model_is_served_from_a_node_and_from_another_one_after_a_drain(platform, cluster, earlier):
    job = await platform.finished(await platform.submit(suffix="nodes"))
    assert job["status"] == "succeeded", platform.retune("jobs", "events", job["id"])
    assert await platform.answer(job["fine_tuned_model"], QUESTION) == material.ANSWER
    first = await new_lease(platform, known=earlier)
    name = lease_node_name(first.lease_id)
    machine = cluster.machine(name)
    assert machine in cluster.machines

    ready_before = await incarnations(platform)
    with cluster.drained(machine, name):
        second = await new_lease(platform, known=earlier | {first.lease_id})
        await platform.heard(ReplicaLost, reason=f"its node goes away: {cluster.drain_source}")
        assert cluster.machine(lease_node_name(second.lease_id)) not in ("", machine)
        assert await platform.answer(job["fine_tuned_model"], QUESTION) == material.ANSWER
    assert await incarnations(platform) - ready_before, "no other replica was ready after the drain"


async def incarnations(platform: Platform) -> set[str]:
    """Those of all replicas that were ever ready."""
    facts = [event.message for event in await platform.events_of()]
    return {fact.replica.incarnation for fact in facts if isinstance(fact, ReplicaReady)}
