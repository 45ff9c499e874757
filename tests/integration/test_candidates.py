"""Versions under evaluation get a place on a replica, and leave nothing behind."""

from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from schemas.deployment import LoadCandidate, UnloadCandidate
from schemas.model import DeploymentApproved
from shared.clock import utc_now
from tests.integration import test_serving_controller as serving
from tests.integration.test_serving_controller import World, controller
from tests.waiting import until

pytestmark = pytest.mark.stack

objects, world, voice, listening = serving.objects, serving.world, serving.voice, serving.listening


async def ask(world: World, version: DeploymentApproved, **changes: Any) -> LoadCandidate:
    fields = {
        "eval_id": f"eval-{version.model_id}",
        "model_id": version.model_id,
        "digest": version.digest,
        "base_sha": world.base_sha,
        "rank": 8,
        "until": utc_now() + timedelta(minutes=10),
    }
    command = LoadCandidate(**fields | changes)
    await world.voices.say("evaluator", command)
    return command


async def refusal_of(world: World, eval_id: str) -> Any:
    async def refusal() -> Any:
        heard = [each.message for each in world.ear.heard[eval_id] if each.message.type == "CommandRefused"]
        return heard[0] if heard else None

    return await until(refusal, f"a refusal of {eval_id}")


async def until_gone(world: World) -> None:
    async def gone() -> bool:
        return not any(name.startswith("gate-") for name in world.engines.names(world.replica))

    await until(gone, "the candidate to be unloaded")


@pytest.fixture
async def served(stack, world: World) -> AsyncIterator[DeploymentApproved]:
    """A version that a slot serves while candidates come and go."""
    version = await world.a_version()
    async with controller(stack, world.engines):
        await world.register()
        await world.approve(version, "support", 1)
        await world.heard("DeploymentReady", generation=1)
        yield version
        # Nothing of it was touched.
        assert f"@{version.digest}" in " ".join(world.engines.names(world.replica))
        assert len(world.facts("DeploymentReady")) == len(world.facts("ReplicaReady")) == 1
        assert not world.facts("DeploymentFailed")
        folder = world.engines.folder(world.replica)
        assert len(list((folder / "adapters").glob(f"{version.digest}-*"))) == 1
        # An engine answers that it has unloaded one before its files are removed.
        await until(partial(has_no_candidates, folder), "the candidates' files to be removed")


async def has_no_candidates(folder: Path) -> bool:
    return not list((folder / "candidates").glob("*-*"))


async def test_a_candidate_is_lent_a_place_until_it_is_given_back(world: World, served: DeploymentApproved):
    # The same bytes as those which are served: giving them back must not take the slot's files away.
    command = await ask(world, served)
    ready = await world.heard("CandidateReady", eval_id=command.eval_id)
    assert ready.served_name == f"gate-{command.eval_id}@{served.digest}"
    assert ready.served_name in world.engines.names(world.replica)
    assert ready.replica == world.facts("ReplicaReady")[0].replica
    assert [fact.served_name for fact in world.facts("AdapterLoaded")] != [ready.served_name]
    await world.voices.say("evaluator", UnloadCandidate(eval_id=command.eval_id))
    await until_gone(world)


async def test_one_that_nobody_gives_back_goes_at_its_time(world: World, served: DeploymentApproved):
    command = await ask(world, await world.a_version(), until=utc_now() + timedelta(seconds=2))
    await world.heard("CandidateReady", eval_id=command.eval_id)
    await until_gone(world)


async def test_asked_again_it_is_announced_again(world: World, served: DeploymentApproved):
    command = await ask(world, version := await world.a_version())
    await world.heard("CandidateReady", eval_id=command.eval_id)
    await ask(world, version)

    async def twice() -> bool:
        return len(world.facts("CandidateReady", eval_id=command.eval_id)) == 2

    await until(twice, "the second answer")
    await world.voices.say("evaluator", UnloadCandidate(eval_id=command.eval_id))
    await until_gone(world)


async def test_one_that_is_not_active_is_refused(world: World, served: DeploymentApproved):
    version = await world.a_version()
    world.engines.idle.add(f"gate-eval-{version.model_id}@{version.digest}")
    refused = await refusal_of(world, (await ask(world, version)).eval_id)
    assert (refused.command, refused.code) == ("LoadCandidate", "probe")
    await until_gone(world)


async def test_one_that_the_engine_refuses_is_refused(world: World, served: DeploymentApproved):
    world.engines.refusing[world.replica] = "gate-"
    refused = await refusal_of(world, (await ask(world, await world.a_version())).eval_id)
    assert (refused.code, "the disk is on fire" in refused.message) == ("load", True)


async def test_one_of_a_rank_that_no_replica_takes_is_refused(world: World, served: DeploymentApproved):
    refused = await refusal_of(world, (await ask(world, await world.a_version(), rank=64)).eval_id)
    assert (refused.code, refused.message) == ("rank", "its rank is 64, expected at most 32")


async def test_where_no_replica_is_ready_it_is_refused_at_once(world: World, served: DeploymentApproved):
    version = await world.a_version()
    refused = await refusal_of(world, (await ask(world, version, base_sha="9" * 64)).eval_id)
    assert refused.code == "replica"


async def test_a_controller_that_died_unloads_what_it_had_not_written_down(stack, world: World):
    async with controller(stack, world.engines):
        await world.register()
        await world.heard("ReplicaReady")
    stray = f"gate-eval-0@{'0' * 64}"
    world.engines.running[world.replica].adapters[stray] = 1.0
    async with controller(stack, world.engines):
        await until_gone(world)
