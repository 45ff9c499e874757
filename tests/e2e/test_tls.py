"""From a file to an answer where every server speaks TLS alone and every client verifies it."""

from collections.abc import AsyncIterator, Sequence

import httpx
import pytest

from schemas.deployment import ReplicaAddress, ReplicaReady
from services.provisioner.model import lease_node_name
from shared.ports import is_free
from shared.replica_http import replica_client, route_of
from shared.tls import Tls
from tests.chaos.scale import Scale, scale
from tests.e2e import material
from tests.e2e.clusters import new_lease, on_nodes_of
from tests.e2e.conftest import BASE, Platform, running_platform
from tests.e2e.test_prometheus import until_all_are_scraped, watching
from tests.e2e.test_slurm import slurm
from tests.integration.lease_clusters import OfSlurm, kill_all_of
from tests.unit.shared.test_replica_http import a_pair, serving
from tests.waiting import until

__all__ = ["slurm"]

pytestmark = [
    pytest.mark.stack,
    pytest.mark.torch,
    pytest.mark.skipif(scale() is Scale.CHANGE, reason="a whole platform of its own: at night"),
]


@pytest.fixture(scope="module")
async def over_tls(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Platform]:
    async with running_platform(tmp_path_factory.mktemp("tls"), tls=True) as platform:
        yield platform


async def test_a_job_ends_as_a_model_that_answers_over_tls(over_tls):
    platform = over_tls
    job = await platform.finished(await platform.submit())
    assert job["retune"]["is_deployed"], platform.retune("jobs", "events", job["id"])
    thing = material.THINGS[310]
    assert await platform.answer(job["fine_tuned_model"], f"What colour is the {thing}?") == material.ANSWER
    urls = [replica.url for replica in await ready_replicas(platform)]
    assert all(url.startswith("https://127.0.0.1:") and "#sha256=" in url for url in urls)


async def test_a_replica_on_a_node_answers_over_tls_and_nothing_is_sent_to_an_impostor_at_its_address(
    over_tls, slurm, tmp_path
):
    platform, question = over_tls, "What colour is the sky?"
    before = await ready_replicas(platform)
    async with on_nodes_of(platform, OfSlurm(slurm), tmp_path):
        lease = await new_lease(platform, known=())
        replica = (await ready_replicas(platform, but=before))[0]
        address = httpx.URL(replica.url)
        assert (address.scheme, address.fragment[:7]) == ("https", "sha256=")
        assert await platform.answer(BASE, question)

        kill_all_of(lease_node_name(lease.lease_id))
        await until(lambda: is_free(address.host, address.port))
        tls = Tls(ca_file=platform.stack.state.ca_file)
        async with serving(a_pair(tmp_path)[0], port=address.port) as impostor, replica_client(tls) as http:
            with pytest.raises(httpx.ConnectError, match=f"expected {address.fragment[7:]}"):
                await http.get(route_of(replica.url, "/v1/models"))
            assert await new_lease(platform, known={lease.lease_id})
            assert await ready_replicas(platform, but=[*before, replica])
            assert await platform.answer(BASE, question)
            assert impostor.heard == []


async def ready_replicas(platform: Platform, *, but: Sequence[ReplicaAddress] = ()) -> list[ReplicaAddress]:
    """Return the replicas that were ever ready, once there is another one than these."""
    replicas: list[ReplicaAddress] = []

    async def are_known() -> bool:
        facts = [each.message for each in await platform.events_of()]
        known = [fact.replica for fact in facts if isinstance(fact, ReplicaReady)]
        replicas.extend(replica for replica in known if replica not in but)
        return bool(replicas)

    await until(are_known, every=1.0)
    return replicas


async def test_prometheus_scrapes_every_service_over_tls(over_tls, tmp_path):
    with watching(over_tls.stack, tmp_path) as prometheus:
        await until_all_are_scraped(prometheus)
        assert [each["labels"]["service"] for each in prometheus.targets() if each["health"] != "up"] == []
        assert all(each["scrapeUrl"].startswith("https://") for each in prometheus.targets())
