"""From a file to an answer where every server speaks TLS alone and every client verifies it."""

from collections.abc import AsyncIterator

import pytest

from schemas.deployment import ReplicaReady
from schemas.topics import DEPLOYMENT_EVENTS
from shared.messaging.delivery import Delivery
from shared.messaging.reader import TopicReader
from tests.chaos.scale import Scale, scale
from tests.e2e import material
from tests.e2e.conftest import Platform, running_platform
from tests.e2e.test_prometheus import until_all_are_scraped, watching

pytestmark = [
    pytest.mark.stack,
    pytest.mark.torch,
    pytest.mark.timeout(900),
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
    async with TopicReader(platform.admin, [DEPLOYMENT_EVENTS.name]) as reader:
        deliveries = [each async for each in reader.to_the_end() if isinstance(each, Delivery)]
    urls = [each.message.replica.url for each in deliveries if isinstance(each.message, ReplicaReady)]
    assert urls
    assert all(url.startswith("https://") for url in urls)


async def test_prometheus_scrapes_every_service_over_tls(over_tls, tmp_path):
    with watching(over_tls.stack, tmp_path) as prometheus:
        await until_all_are_scraped(prometheus)
        assert [each["labels"]["service"] for each in prometheus.targets() if each["health"] != "up"] == []
        assert all(each["scrapeUrl"].startswith("https://") for each in prometheus.targets())
