"""Replicas of a base model by what they have to answer; vLLM is a stand-in, which shows what a test says."""

import pytest

from tests.integration import test_serving_controller
from tests.integration.test_serving_controller import World, controller, everywhere, replica_of
from tests.waiting import until

pytestmark = pytest.mark.stack

objects, voice = test_serving_controller.objects, test_serving_controller.voice
listening, world = test_serving_controller.listening, test_serving_controller.world


async def test_a_replica_is_added_while_requests_wait_and_leaves_when_it_has_answered(stack, world):
    one, engines = await world.a_version(), world.engines
    scaling = {"max_replicas_per_pool": 2, "scale_up_seconds": 1, "scale_down_seconds": 1}
    async with controller(stack, engines, **scaling):
        await world.register()
        await world.approve(one, "support", 1)
        await world.heard("DeploymentReady", generation=1)
        engines.running[world.replica].waiting = 1
        await until(lambda: everywhere(world, one.digest), "two replicas to serve the version")
        engines.running[world.replica].waiting = 0
        added = await replica_of(world, 1)
        engines.running[added.replica_id].running = 1
        lost = await world.heard("ReplicaLost", replica=added)
        assert lost.reason == "not needed any more"
        remaining = (await replica_of(world, 0),)

        async def is_routed_alone() -> bool:
            return world.facts("DeploymentReady", generation=1)[-1].replicas == remaining

        await until(is_routed_alone, "the slot to be routed to the other replica alone")
        assert await world.engines.inspect(added.replica_id) is not None, "it answers what it was asked"
        engines.running[added.replica_id].running = 0
        await until(lambda: _is_gone(world, added.replica_id), "the replica to end")
    assert len(world.facts("ReplicaLost")) == 1
    # A start that could not be written down is made again.
    assert set(world.engines.starts_of(world.pool)) == {world.replica, added.replica_id}


async def _is_gone(world: World, replica_id: str) -> bool:
    return await world.engines.inspect(replica_id) is None
