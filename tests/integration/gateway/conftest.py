"""One gateway answers all tests of this folder; a test that ends it starts it again with `ENV`."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from deploy.local.stack import Stack
from tests.integration.gateway.world import ENV, Replica, World, met
from tests.integration.kills import alive


@pytest.fixture(scope="package")
async def gateway(stack: Stack) -> AsyncIterator[Stack]:
    await alive(stack, "gateway", env=ENV)
    yield stack
    await stack.stop("gateway")


@pytest.fixture(scope="module")
async def world(gateway: Stack) -> AsyncIterator[World]:
    """With the gateway running, also where a test that ended it has failed before it started it again."""
    if "gateway" not in gateway.processes:
        await alive(gateway, "gateway", env=ENV)
    async with met(gateway) as world:
        yield world


@pytest.fixture
async def replica(world: World) -> AsyncIterator[Callable[..., Awaitable[Replica]]]:
    started: list[Replica] = []

    async def start(way: str = "answer") -> Replica:
        started.append(Replica(world.keys_dir, way=way))
        await started[-1].start()
        return started[-1]

    yield start
    for each in started:
        await each.stop()
