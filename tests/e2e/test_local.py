"""The road of a job whose nodes are process groups of the machine that the provisioner runs on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from schemas.node import AllocatedNode, DrainNode, NodesProvisioned
from shared.messaging.reader import send
from tests.chaos.scale import at_night
from tests.e2e.clusters import Events, kill_all_of, run_through, with_pools
from tests.e2e.conftest import Platform

pytestmark = [
    pytest.mark.stack,
    pytest.mark.torch,
    at_night("a gang of two in three attempts"),
]

NUM_MACHINES = 4
POOLS = f"""
[pools.cluster]
capacity_type = "spot"
device = "cpu"
devices_per_node = 1
nodes = {NUM_MACHINES}
price_per_device_hour = 0.10
"""


@pytest.fixture(scope="module")
async def pools(platform: Platform) -> AsyncIterator[None]:
    async with with_pools(platform, POOLS):
        yield


async def test_a_gang_of_two_outlives_outages_and_losses_of_this_machine(platform: Platform, pools: None):
    @asynccontextmanager
    async def outage(_: str) -> AsyncIterator[None]:
        """What schedules here is the provisioner itself, which the road kills: nobody starts it again."""
        platform.stack.supervise = False
        try:
            yield
        finally:
            platform.stack.supervise = True
            await platform.stack.start("provisioner")

    @asynccontextmanager
    async def taken_back(attempt: str) -> AsyncIterator[None]:
        drains = (DrainNode(node_id=f"{attempt}-n{index}") for index in range(2))
        await asyncio.gather(*(send(platform.admin, each, writer="admin") for each in drains))
        yield
        platform.retune("nodes", "set-capacity", "cluster", str(NUM_MACHINES))

    @asynccontextmanager
    async def loss(attempt: str) -> AsyncIterator[str]:
        node = await provisioned(platform, f"{attempt}-n1")
        kill_all_of(node.node_id)
        yield machine_of(node)

    cluster = Events(outage, taken_back, loss, notice_source="drain", machine_of=machine_of)
    machines = await run_through(platform, suffix="local", cluster=cluster)
    assert machines[0].isdisjoint(machines[1]), machines


async def provisioned(platform: Platform, node_id: str) -> AllocatedNode:
    facts = [event.message for event in await platform.events_of()]
    nodes = (node for fact in facts if isinstance(fact, NodesProvisioned) for node in fact.nodes)
    return next(node for node in nodes if node.node_id == node_id)


def machine_of(node: AllocatedNode) -> str:
    """The local backend has numbers for its machines."""
    return str(node.machine)
