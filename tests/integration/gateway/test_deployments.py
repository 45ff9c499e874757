"""What became of a slot's generations: by the facts of two topics, whichever is heard first."""

import itertools
import re

import pytest

from schemas.deployment import (
    DeploymentFailed,
    DeploymentReady,
    DeploymentRolledBack,
    DeploymentStep,
    ReplicaAddress,
    ReplicaSteps,
    Swap,
)
from schemas.model import DeploymentWithdrawn, ModelRegistered
from tests.integration.gateway.pages import logged_in, words_of
from tests.integration.gateway.world import World, mark, new_key
from tests.waiting import until

pytestmark = pytest.mark.stack

REPLICAS = tuple(
    ReplicaSteps(
        replica_id=f"serve-1-{number}",
        fetch_seconds=0.25,
        load_seconds=0.6,
        read_back_seconds=0.002,
        probe_seconds=0.04 + number / 100,
    )
    for number in (0, 1)
)
SWAP = Swap(replicas=REPLICAS, route_seconds=0.007, total_seconds=2.0)
BACK = Swap(replicas=(), route_seconds=0.012, total_seconds=0.012)


@pytest.fixture
async def tenant(world: World) -> str:
    tenant = f"t-{mark()}"
    world.keys[tenant] = await new_key(world, tenant)
    return tenant


def ready(
    world: World, version: ModelRegistered, generation: int, swap: Swap | None, slot: str = "docs"
) -> DeploymentReady:
    replica = ReplicaAddress(replica_id=REPLICAS[0].replica_id, incarnation="1", url="http://127.0.0.1:1")
    fact = world.ready(version, replica, generation=generation, slot=slot)
    return fact.model_copy(update={"swap": swap})


def of_slot(ready: DeploymentReady) -> dict[str, object]:
    return ready.model_dump(exclude={"served_name", "replicas", "swap"})


async def the_story(world: World, tenant: str, slot: str = "docs") -> tuple[ModelRegistered, ModelRegistered]:
    """A version, one that fails to be read back, one that takes its place, the first one again, and the end."""
    first, second = await world.a_version(tenant), await world.a_version(tenant)
    back = ready(world, first, 4, BACK, slot)
    failed = DeploymentFailed(
        **of_slot(ready(world, second, 2, None, slot)),
        code="load",
        reason="not listed",
        step=DeploymentStep.READ_BACK,
    )
    facts = [
        ready(world, first, 1, SWAP, slot),
        failed,
        ready(world, second, 3, SWAP, slot),
        back,
        DeploymentRolledBack(**of_slot(back), previous_digest=second.digest),
    ]
    versions = (first, second, second, first)
    approvals = [world.approved(each, number, slot) for number, each in enumerate(versions, 1)]
    withdrawn = DeploymentWithdrawn(slot=slot, tenant=tenant, generation=5, reason="asked for")
    await world.voices.say("serving_controller", *facts)
    await world.voices.say("registry", *approvals, withdrawn)
    await until(lambda: generations(world, tenant, slot, approved=4, withdrawn=1), "the story of the slot")
    return first, second


async def generations(world: World, tenant: str, slot: str, *, approved: int, withdrawn: int) -> bool:
    counts = await world.db.fetchrow(
        "SELECT count(approved_at) AS approved, count(withdrawn_at) AS withdrawn, count(changed_at) AS all"
        " FROM slot_generation WHERE tenant = $1 AND slot = $2",
        tenant,
        slot,
    )
    return tuple(counts) == (approved, withdrawn, approved + withdrawn)


async def test_have_what_became_of_them_and_how_long_each_step_took(world, tenant):
    first, second = await the_story(world, tenant)
    answer = (await world.ask("GET", "/deployments/docs/history", tenant=tenant)).json()
    assert [(each["generation"], each["status"], each["failed_step"]) for each in answer["data"]] == [
        (5, "withdrawn", None),
        (4, "ready", None),
        (3, "ready", None),
        (2, "failed", "read_back"),
        (1, "ready", None),
    ]
    ended, back, _, failed, oldest = answer["data"]
    assert (ended["reason"], failed["reason"]) == ("asked for", "not listed")
    assert (back["rolled_back_from"], back["digest"]) == (second.digest, first.digest)
    assert oldest["swap"] == SWAP.model_dump(mode="json")
    assert back["swap"] == BACK.model_dump(mode="json")
    assert None not in (oldest["approved_at"], oldest["ready_at"], failed["ended_at"], ended["ended_at"])
    pages = [
        (await world.ask("GET", f"/deployments/docs/history?limit=2{after}", tenant=tenant)).json()
        for after in ("", "&after=generation-4", "&after=generation-2")
    ]
    assert list(itertools.chain(*(page["data"] for page in pages))) == answer["data"]
    assert [page["has_more"] for page in pages] == [True, True, False]


async def test_are_on_the_page_with_the_line_of_their_steps(world, tenant):
    first, _ = await the_story(world, tenant)
    async with logged_in(world, tenant) as client:
        words = words_of(await client.get("/deployments/docs/history"))
        assert (await client.get("/deployments/nothing/history")).status_code == 404
    line = "2 s load 850 ms read back 2 ms probe 50 ms route 7 ms"
    assert (
        f"1 generation 1 became ready {first.model_id} {first.digest[:12]} just now {line} each replica"
        in words
    )
    assert "serve-1-1 fetch 250 ms, load 600 ms, read back 2 ms, probe 50 ms" in words
    assert "load passed read back failed probe – route – not listed" in words
    assert re.search(r"12 ms rolled back from [0-9a-f]{12} load – read back – probe – route 12 ms", words)


async def test_of_the_present_one_the_swap_is_in_the_deployment(world, tenant):
    version = await world.a_version(tenant)
    await world.voices.say("registry", world.approved(version, 1, "docs"))
    await world.voices.say(
        "serving_controller", ready(world, version, 1, SWAP), ready(world, version, 1, None)
    )
    await until(lambda: generations(world, tenant, "docs", approved=1, withdrawn=0), "the generation")
    query = "SELECT swap IS NOT NULL FROM slot_generation WHERE tenant = $1"
    await until(lambda: world.db.fetchval(query, tenant), "its swap")
    for path in ("/deployments/docs", "/deployments"):
        answer = (await world.ask("GET", path, tenant=tenant)).json()
        [shown] = answer.get("data", [answer])
        assert (shown["swap"], shown["failed_step"]) == (SWAP.model_dump(mode="json"), None)
    async with logged_in(world, tenant) as client:
        words = words_of(await client.get("/deployments"))
    assert "1 1 replica 2 s load 850 ms read back 2 ms probe 50 ms route 7 ms just now" in words


async def test_of_a_release_before_have_times_and_no_steps(world, tenant):
    """It sends no swap, and what is ready again was ready before."""
    version, unheard = await world.a_version(tenant), await world.a_version(tenant)
    await world.voices.say("registry", world.approved(version, 1, "docs"))
    await until(lambda: generations(world, tenant, "docs", approved=1, withdrawn=0), "the approval")
    replica = ReplicaAddress(replica_id="serve-1-0", incarnation="1", url="http://127.0.0.1:1")
    await world.voices.say(
        "serving_controller", ready(world, version, 1, None), world.ready(unheard, replica, slot="unheard")
    )
    await until(lambda: world.state_of("unheard", "ready"), "the other slot")
    [shown] = (await world.ask("GET", "/deployments/docs/history", tenant=tenant)).json()["data"]
    assert (shown["status"], shown["swap"], shown["ready_at"] is None) == ("ready", None, False)
    assert (await world.ask("GET", "/deployments/unheard/history", tenant=tenant)).json()["data"] == []
