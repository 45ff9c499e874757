"""What the page shows of jobs that wait, and how one is made on it."""

import re

import pytest

from tests.integration.gateway_world import mark, new_key, world
from tests.integration.page_world import add_waiting_jobs, logged_in, words_of

__all__ = ["world"]

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]


async def test_what_waits_begins_with_the_head_of_the_queue(world):
    tenant = f"t-{mark()}"
    world.keys[tenant] = await new_key(world, tenant)
    await add_waiting_jobs(world, tenant, 30)
    async with logged_in(world, tenant) as client:
        answer = await client.get("/")
    assert [*map(int, re.findall(r'title="waits-(\d+)"', answer.text))] == [*range(1, 21)]
    assert "The first 20 of 31 are shown." in words_of(answer)
