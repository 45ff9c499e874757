"""How long the steps of a swap take, and which one failed.

That what was measured outlives a controller is in `test_serving_controller_failpoints`.
"""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from schemas.deployment import DeploymentStep
from schemas.model import DeploymentApproved
from tests.integration import test_serving_controller as serving
from tests.integration.test_serving_controller import World, controller, everywhere
from tests.stored import put_model
from tests.waiting import until

pytestmark = [pytest.mark.stack]

objects, voice, listening, world = serving.objects, serving.voice, serving.listening, serving.world


def name_of(version: DeploymentApproved) -> str:
    number = version.model_id.rpartition("-")[2]
    return f"ft:tiny:demo:{number}:{version.digest[:8]}@{version.digest}"


async def two_replicas(world: World, version: DeploymentApproved) -> None:
    """Two replicas that serve a version under `first`."""
    await world.register()
    for index in (0, 1):
        await serving.replica_of(world, index)
    await world.approve(version, "first", 1)
    await until(lambda: everywhere(world, version.digest), "both replicas to serve the version")


async def test_each_replicas_steps_are_timed_and_a_roll_back_loads_nothing(stack, world):
    one, two = await world.a_version(), await world.a_version()
    async with controller(stack, world.engines, replicas=2):
        await two_replicas(world, one)
        await world.approve(two, "first", 2)
        ready = await world.heard("DeploymentReady", generation=2)
        await world.approve(one, "first", 3)
        back = await world.heard("DeploymentReady", generation=3)
        await world.heard("DeploymentRolledBack", generation=3)
    assert [each.replica_id for each in ready.swap.replicas] == [f"{world.pool}-0", f"{world.pool}-1"]
    loaded = {each.replica.replica_id: each for each in world.facts("AdapterLoaded", digest=two.digest)}
    assert all(each.load_seconds == loaded[each.replica_id].load_seconds for each in ready.swap.replicas)
    taken = [
        each.fetch_seconds + each.load_seconds + each.read_back_seconds + each.probe_seconds
        for each in ready.swap.replicas
    ]
    assert 0 < sum(taken) + ready.swap.route_seconds < ready.swap.total_seconds
    assert back.swap.replicas == ()
    assert 0 < back.swap.route_seconds == back.swap.total_seconds


@pytest.mark.parametrize("step", [DeploymentStep.LOAD, DeploymentStep.READ_BACK, DeploymentStep.PROBE])
async def test_the_step_that_fails_is_named(stack, world, step):
    one = await world.a_version()
    match step:
        case DeploymentStep.LOAD:
            world.engines.refusing[world.replica] = one.digest
        case DeploymentStep.READ_BACK:
            world.engines.unlisted.add(name_of(one))
        case DeploymentStep.PROBE:
            world.engines.idle.add(name_of(one))
    async with controller(stack, world.engines):
        await world.register()
        await world.approve(one, "support", 1)
        failed = await world.heard("DeploymentFailed", generation=1)
    assert failed.step is step


async def test_a_full_models_replica_loads_it_by_its_start(stack, world, tmp_path):
    directory = tmp_path / "full"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"of": world.base_sha}))
    save_file({f"{serving.MODULE}.weight": np.ones((4, 4), np.float32)}, directory / "model.safetensors")
    adapter = await world.a_version()
    digest = await put_model(world.objects, directory, base_sha=world.base_sha, kind="full")
    full = adapter.model_copy(update={"kind": "full", "digest": digest, "rank": 0})
    async with controller(stack, world.engines):
        await world.register()
        await world.approve(full, "support", 1)
        ready = await world.heard("DeploymentReady", generation=1)
    [steps] = ready.swap.replicas
    assert steps.fetch_seconds is None
    assert steps.load_seconds == (await world.heard("AdapterLoaded", digest=digest)).load_seconds
    assert 0 < steps.load_seconds + steps.read_back_seconds + steps.probe_seconds <= ready.swap.total_seconds
