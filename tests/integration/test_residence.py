"""How many adapters stay loaded, which ones, and what becomes of the others."""

import pytest

from schemas.deployment import UseAdapters, UsedSlot
from services.serving_controller.model import SlotState
from tests.integration import test_serving_controller as serving
from tests.integration.test_serving_controller import World, controller
from tests.waiting import until

pytestmark = [pytest.mark.stack]

objects, voice, listening, world = serving.objects, serving.voice, serving.listening, serving.world


async def deployed(world: World, *slots: str) -> list[str]:
    """A version in each slot, one after the other; their digests."""
    versions = [await world.a_version() for _ in slots]
    await world.register()
    for slot, version in zip(slots, versions, strict=True):
        await world.approve(version, slot, 1)
        await world.heard("DeploymentReady", digest=version.digest)
    return [version.digest for version in versions]


async def use(world: World, *slots: str) -> None:
    used = tuple(UsedSlot(tenant="demo", slot=world.slot(slot)) for slot in slots)
    await world.voices.say("gateway", UseAdapters(reporter="gateway", slots=used))


async def loaded(world: World, *digests: str) -> None:
    async def are_loaded() -> bool:
        names = world.engines.names(world.replica)
        return {name.rpartition("@")[2] for name in names} == set(digests)

    await until(are_loaded, f"{len(digests)} adapters to be loaded, of {world.engines.names(world.replica)}")


async def idle(world: World, *digests: str, times: int = 1) -> None:
    async def are_told() -> bool:
        return all(len(world.facts("DeploymentIdle", digest=digest)) == times for digest in digests)

    await until(are_told, f"DeploymentIdle; heard {world.ear.types(world.pool)}")


async def test_those_used_last_stay_loaded_and_all_stay_deployed(stack, world):
    async with controller(stack, world.engines, keep_seconds=0.5, max_resident_adapters=2) as service:
        first, second, third = await deployed(world, "first", "second", "third")
        await idle(world, first)
        await loaded(world, second, third)
        names = [world.slot(slot) for slot in ("first", "second", "third")]
        states = await service.database.fetch("SELECT state FROM slot WHERE name = ANY($1)", names)
        count = await service.database.fetchval("SELECT count(*) FROM wanted WHERE slot = ANY($1)", names)
    assert {row["state"] for row in states} == {SlotState.READY}
    assert count == 3
    assert world.facts("DeploymentStopped") == world.facts("DeploymentFailed") == []


async def test_what_is_asked_for_is_loaded_in_place_of_what_was_used_longest_ago(stack, world):
    async with controller(stack, world.engines, keep_seconds=0.5, max_resident_adapters=2):
        first, second, third = await deployed(world, "first", "second", "third")
        await idle(world, first)
        await use(world, "second")
        await use(world, "first")
        await idle(world, third)
        await loaded(world, first, second)

        async def is_ready_again() -> bool:
            return len(world.facts("DeploymentReady", digest=first)) == 2

        await until(is_ready_again, "the route of what was asked for")
    assert world.facts("DeploymentReady", digest=first)[-1].replicas
    assert len(world.facts("DeploymentIdle")) == 2


async def test_what_is_idle_stays_loaded_for_requests_under_way_and_comes_back_without_a_load(stack, world):
    async with controller(stack, world.engines, keep_seconds=600, max_resident_adapters=1):
        first, second = await deployed(world, "first", "second")
        await idle(world, first)
        await use(world, "first")
        await idle(world, second)

        async def is_ready_again() -> bool:
            return len(world.facts("DeploymentReady", digest=first)) == 2

        await until(is_ready_again, "the route of what was asked for")
        await loaded(world, first, second)
    assert len(world.facts("AdapterLoaded", digest=first)) == 1


async def test_a_replica_that_starts_again_loads_no_more_than_stay_loaded(stack, world):
    async with controller(stack, world.engines, keep_seconds=0.5, max_resident_adapters=1):
        first, second = await deployed(world, "first", "second")
        await idle(world, first)
        await loaded(world, second)
        world.engines.running[world.replica].is_alive = False

        async def is_ready_again() -> bool:
            return len(world.facts("DeploymentReady", digest=second)) == 2

        await until(is_ready_again, "the route at the replica that started again")
        await loaded(world, second)
        await use(world, "first")
        await loaded(world, first)


async def test_one_who_leads_next_knows_what_was_used_and_a_lower_limit(stack, world):
    async with controller(stack, world.engines, keep_seconds=0.5) as service:
        first, second, third = await deployed(world, "first", "second", "third")
        await use(world, "first")
        await loaded(world, first, second, third)

        async def is_written_down() -> bool:
            query = "SELECT EXISTS (SELECT FROM slot_use WHERE slot = $1)"
            return bool(await service.database.fetchval(query, world.slot("first")))

        await until(is_written_down, "the use to be written down")
    async with controller(stack, world.engines, keep_seconds=0.5, max_resident_adapters=1):
        await idle(world, second, third)
        await loaded(world, first)
    assert world.facts("DeploymentIdle", digest=first) == []


async def test_a_version_that_is_approved_takes_no_place_before_it_is_served(stack, world):
    async with controller(stack, world.engines, keep_seconds=0.5, max_resident_adapters=1):
        [first] = await deployed(world, "first")
        broken = await world.a_version()
        world.engines.refusing[world.replica] = broken.digest
        await world.approve(broken, "broken", 1)
        await world.heard("DeploymentFailed", digest=broken.digest)
        await loaded(world, first)
    assert world.facts("DeploymentIdle") == []


async def test_what_cannot_be_loaded_any_more_fails_like_whatever_is_served(stack, world):
    async with controller(stack, world.engines, keep_seconds=0.5, max_resident_adapters=1):
        first, second = await deployed(world, "first", "second")
        await idle(world, first)
        await loaded(world, second)
        world.engines.refusing[world.replica] = first
        await use(world, "first")
        failed = await world.heard("DeploymentFailed", digest=first)
    assert failed.code == "load"


async def test_a_use_of_what_is_not_deployed_is_forgotten(stack, world):
    async with controller(stack, world.engines, max_resident_adapters=1) as service:
        await deployed(world, "first")
        await use(world, "nothing", "first")

        async def slots() -> set[str]:
            names = [world.slot(slot) for slot in ("nothing", "first")]
            query = "SELECT slot FROM slot_use WHERE slot = ANY($1)"
            return {row["slot"] for row in await service.database.fetch(query, names)}

        async def is_known() -> bool:
            return await slots() == {world.slot("first")}

        await until(is_known, "the use to be written down")
        await world.withdraw("first", 2)
        await world.heard("DeploymentStopped")
        assert await slots() == set()
