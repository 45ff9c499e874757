"""Which replica gets a chat request, when there is one, and what a caller hears when there is none."""

import asyncio
import json

import openai
import pytest

from schemas.deployment import (
    CandidateReady,
    DeploymentFailed,
    DeploymentIdle,
    DeploymentStopped,
    ReplicaLost,
    ReplicaReady,
    UseAdapters,
    UsedSlot,
)
from schemas.model import NO_TEMPLATE_SHA256, DeploymentWithdrawn, ModelRegistered
from tests.integration.gateway.world import Replica, World, mark
from tests.waiting import until

pytestmark = pytest.mark.stack

HELLO = [{"role": "user", "content": "hello"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"properties": {"city": {"type": "string", "default": None}}},
    },
}


async def chat(world: World, model: str, **options):
    async with world.client(retries=options.pop("retries", 0)) as client:
        return await client.chat.completions.create(model=model, messages=HELLO, **options)


class TestRoutes:
    @pytest.mark.parametrize("first", ["approved", "ready"])
    async def test_are_ready_whichever_topic_is_heard_first(self, world, replica, first):
        version, server = await world.a_version(), await replica()
        slot = version.full_name
        await world.announce(server)

        async def approve() -> None:
            await world.voices.say("registry", world.approved(version))
            await until(lambda: world.is_consumed("model.events", slot, 1), "the approval")

        async def make_ready() -> None:
            await world.voices.say("serving_controller", world.ready(version, server.address))
            await until(lambda: world.state_of(slot, "ready"), "the route")

        steps = [approve, make_ready]
        for step in steps if first == "approved" else steps[::-1]:
            await step()
        assert await world.state_of(slot, "ready")
        assert (await chat(world, slot)).model == slot

    async def test_that_were_stopped_stay_stopped_when_the_withdrawal_comes_late(self, world):
        version, slot = await world.a_version(), f"alias-{mark()}"
        fields = world.ready(version, generation=2, slot=slot).model_dump(exclude={"served_name", "replicas"})
        await world.voices.say("serving_controller", DeploymentStopped(**fields))
        await until(lambda: world.state_of(slot, "stopped"), "the stop")
        withdrawn = DeploymentWithdrawn(slot=slot, tenant="demo", generation=2, reason="asked for")
        await world.voices.say("registry", withdrawn)
        await until(lambda: world.is_consumed("model.events", slot, 1), "the withdrawal")
        assert await world.state_of(slot, "stopped")

    async def test_keep_the_version_before_until_the_next_one_is_loaded(self, world, replica):
        old, new, server = await world.a_version(), await world.a_version(), await replica()
        slot = f"alias-{mark()}"
        await world.announce(server)
        await world.voices.say("registry", world.approved(old, slot=slot))
        await world.voices.say("serving_controller", world.ready(old, server.address, slot=slot))
        await until(lambda: world.state_of(slot, "ready"), "the route")
        await world.voices.say("registry", world.approved(new, 2, slot=slot))
        await until(lambda: world.state_of(slot, "pending"), "the second approval")
        await chat(world, slot)
        fields = world.ready(new, generation=2, slot=slot).model_dump(exclude={"served_name", "replicas"})
        await world.voices.say("serving_controller", DeploymentFailed(**fields, code="load", reason="no"))
        await until(lambda: world.state_of(slot, "failed"), "the failure")
        await chat(world, slot)
        assert [body["model"] for body in server.asked] == [f"{old.full_name}@{old.digest}"] * 2


async def register(world: World, template_sha256: str) -> None:
    base = world.registered_base().model_copy(update={"template_sha256": template_sha256})
    await world.voices.say("registry", base)
    query = "SELECT detail ->> 'template_sha256' = $2 FROM base_model WHERE name = $1"
    await until(lambda: world.db.fetchval(query, base.name, template_sha256), "the registration")


class TestAModelWithoutAChatTemplate:
    @pytest.fixture
    async def name(self, world, replica):
        """Of a version on such a base, and served."""
        version = await world.a_version()
        await world.serve(version, await replica())
        await register(world, NO_TEMPLATE_SHA256)
        yield version.full_name
        await register(world, world.registered_base().template_sha256)

    async def test_is_asked_by_completions_alone(self, world, name):
        for model in (name, world.base_name):
            with pytest.raises(openai.BadRequestError, match="ask it by /v1/completions") as caught:
                await chat(world, model)
            assert caught.value.code == "no_chat_template"
        async with world.client() as client:
            assert (await client.completions.create(model=name, prompt="hello")).model == name

    async def test_is_not_trained_on_conversations(self, world, name):
        row = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]}
        async with world.client() as client:
            rows = ("rows.jsonl", json.dumps(row).encode())
            file = await client.files.create(file=rows, purpose="fine-tune")
            with pytest.raises(openai.BadRequestError, match="no chat template: bring rows of prompt"):
                await client.fine_tuning.jobs.create(model=world.base_name, training_file=file.id)


class TestAnApprovedModel:
    @pytest.mark.parametrize("word", ["approved", "succeeded"])
    async def test_is_waited_for(self, world, replica, word):
        version, server = await world.a_version(), await replica()
        await world.announce(server)
        if word == "approved":
            await world.voices.say("registry", world.approved(version))
            await until(lambda: world.state_of(version.full_name, "pending"), "the approval")
        else:
            await world.voices.say("scheduler", world.succeeded(version))
            await until(lambda: world.is_consumed("job.events", version.job_id, 1), "the success")
        asking = asyncio.create_task(chat(world, version.full_name))
        await until(lambda: is_awaited(world, version.full_name), "the request to be there")
        await world.voices.say("serving_controller", world.ready(version, server.address))
        assert (await asking).model == version.full_name

    async def test_is_unavailable_and_not_unknown_when_that_takes_too_long(self, world):
        version = await world.a_version()
        await world.voices.say("scheduler", world.succeeded(version))
        await until(lambda: world.is_consumed("job.events", version.job_id, 1), "the success")
        with pytest.raises(openai.InternalServerError) as caught:
            await chat(world, version.full_name)
        assert (caught.value.status_code, caught.value.code) == (503, "model_unavailable")
        assert int(caught.value.response.headers["retry-after"]) > 0

    async def test_that_is_withdrawn_is_not_deployed(self, world):
        version = await world.a_version()
        await world.voices.say("scheduler", world.succeeded(version))
        withdrawn = DeploymentWithdrawn(slot=version.full_name, tenant="demo", generation=2, reason="stale")
        await world.voices.say("registry", world.approved(version), withdrawn)
        await until(lambda: world.state_of(version.full_name, "withdrawn"), "the withdrawal")
        with pytest.raises(openai.NotFoundError, match="not deployed"):
            await chat(world, version.full_name)

    async def test_that_nobody_approved_is_not_waited_for(self, world):
        version = await world.a_version()
        with pytest.raises(openai.NotFoundError, match="stage 'staging' and not deployed; gate: passed"):
            await chat(world, version.full_name)


class TestACandidateOfTheGate:
    async def test_is_reached_by_no_name_that_anyone_can_ask_for(self, world, replica):
        version, other, server = await world.a_version(), await world.a_version(), await replica()
        eval_id = f"eval-{mark()}"
        fact = CandidateReady(
            **world.ready(version, server.address).model_dump(include={"pool", "base_sha", "digest"}),
            eval_id=eval_id,
            replica=server.address,
            served_name=f"gate-{eval_id}@{version.digest}",
            served_base="tiny@base",
        )
        await world.voices.say("serving_controller", fact)
        # On the same partition, so that what came before was heard.
        await world.serve(other, server)
        for name in (fact.served_name, f"gate-{eval_id}", eval_id, version.full_name):
            with pytest.raises(openai.NotFoundError):
                await chat(world, name)
        assert server.asked == []


async def is_awaited(world: World, slot: str) -> bool:
    lines = world.stack.log("gateway").read_text().splitlines()
    return any("route awaited" in line and slot in line for line in lines)


class TestAModelThatIsNotLoaded:
    @pytest.fixture
    async def idle(self, world: World, replica) -> tuple[ModelRegistered, Replica]:
        version, server = await world.a_version(), await replica()
        await world.serve(version, server)
        fields = world.ready(version).model_dump(exclude={"served_name", "replicas"})
        await world.voices.say("serving_controller", DeploymentIdle(**fields))
        has_none = "SELECT replicas = '[]' FROM route WHERE slot = $1"
        await until(lambda: world.db.fetchval(has_none, version.full_name), "the route to be empty")
        return version, server

    async def test_is_asked_for_and_waited_for(self, world, idle):
        version, server = idle
        asking = [asyncio.create_task(chat(world, version.full_name)) for _ in range(5)]
        slot = UsedSlot(tenant="demo", slot=version.full_name)

        async def is_asked_for() -> bool:
            asked = (each.message for each in world.ear.heard["gateway"])
            return any(isinstance(each, UseAdapters) and slot in each.slots for each in asked)

        await until(is_asked_for, "the serving controller to be asked for it")
        assert server.asked == []
        await world.voices.say("serving_controller", world.ready(version, server.address))
        assert {answer.model for answer in await asyncio.gather(*asking)} == {version.full_name}

    async def test_is_unavailable_by_the_limits_name_when_that_takes_too_long(self, world, idle):
        version, server = idle
        with pytest.raises(openai.InternalServerError, match="MAX_RESIDENT_ADAPTERS") as caught:
            await chat(world, version.full_name)
        assert (caught.value.status_code, caught.value.code) == (503, "model_not_loaded")
        assert int(caught.value.response.headers["retry-after"]) > 0
        assert server.asked == []

    async def test_is_never_answered_by_a_base_model_of_its_name(self, world, idle):
        version, server = idle
        ready = ReplicaReady(
            pool=f"serve-{world.base_sha[:12]}",
            base_sha=version.base_sha,
            replica=server.address,
            base_model=world.base_name,
            served_base=world.base_name,
        )
        await world.voices.say("serving_controller", ready)
        alias = world.ready(version, generation=1, slot=world.base_name)
        await world.voices.say("serving_controller", alias)
        await until(lambda: world.state_of(world.base_name, "ready"), "the slot of that name")
        with pytest.raises(openai.InternalServerError) as caught:
            await chat(world, world.base_name)
        assert caught.value.code == "model_not_loaded"
        assert server.asked == []
        stopped = alias.model_copy(update={"generation": 2}).model_dump(exclude={"served_name", "replicas"})
        lost = ReplicaLost(
            pool=ready.pool, base_sha=ready.base_sha, replica=server.address, reason="of this test alone"
        )
        await world.voices.say("serving_controller", DeploymentStopped(**stopped), lost)
        await until(lambda: world.state_of(world.base_name, "stopped"), "the slot to be gone")


class TestAReplica:
    @pytest.fixture
    async def two(self, world: World, replica) -> tuple[str, Replica, Replica]:
        version, servers = await world.a_version(), (await replica(), await replica())
        await world.serve(version, *servers)
        return version.full_name, *servers

    async def test_gets_only_what_was_checked(self, world, two):
        name, *servers = two
        await chat(world, name, temperature=0.5, user="me", extra_body={"top_k": 5})
        (body,) = [body for server in servers for body in server.asked]
        assert body.pop("model").startswith(f"{name}@")
        assert body == {"messages": HELLO, "temperature": 0.5, "top_k": 5}
        with pytest.raises(openai.BadRequestError) as caught:
            await chat(world, name, extra_body={"prompt_logprobs": 0})
        assert caught.value.param == "prompt_logprobs"
        assert sum(len(server.asked) for server in servers) == 1

    async def test_gets_tools_calls_and_results_and_its_calls_come_back(self, world, two):
        name, *servers = two
        for server in servers:
            server.way = "call a tool"
        asked = {"tools": [WEATHER], "tool_choice": "auto", "response_format": {"type": "json_object"}}
        async with world.client() as client:
            first = await client.chat.completions.create(model=name, messages=HELLO, **asked)
            answer = first.choices[0].message
            assert [call.function.name for call in answer.tool_calls] == ["weather"]
            result = {"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": "rain"}
            turns = [*HELLO, answer, result]
            await client.chat.completions.create(model=name, messages=turns, **asked)
        bodies = sorted(
            (body for server in servers for body in server.asked), key=lambda b: len(b["messages"])
        )
        assert all({field: body[field] for field in asked} == asked for body in bodies)
        sent = answer.model_dump(include={"role", "tool_calls"})
        assert bodies[1]["messages"] == [*HELLO, sent, result]

    async def test_streams_a_call_piece_by_piece(self, world, two):
        name, *servers = two
        for server in servers:
            server.way = "call a tool in a stream"
        async with world.client() as client:
            stream = await client.chat.completions.create(
                model=name, messages=HELLO, tools=[WEATHER], tool_choice="required", stream=True
            )
            chunks = [chunk async for chunk in stream]
        pieces = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
        assert (pieces[0].id, pieces[0].function.name) == ("call-1", "weather")
        assert "".join(piece.function.arguments for piece in pieces) == '{"city": "Bonn"}'
        assert {chunk.model for chunk in chunks} == {name}
        assert chunks[-1].choices[0].finish_reason == "tool_calls"

    async def test_that_does_not_listen_is_passed_over(self, world, two):
        name, dead, alive = two
        await dead.stop()
        for _ in range(6):
            await chat(world, name)
        assert len(alive.asked) == 6

    async def test_without_a_key_is_passed_over(self, world, two):
        name, keyless, alive = two
        (world.keys_dir / keyless.id).unlink()
        for _ in range(6):
            await chat(world, name)
        assert len(alive.asked) == 6

    async def test_that_lost_the_model_is_passed_over(self, world, two):
        name, forgetful, alive = two
        forgetful.way = "forget"
        for _ in range(6):
            await chat(world, name)
        assert len(alive.asked) == 6

    @pytest.mark.parametrize("way", ["die", "break"])
    async def test_that_fails_takes_no_other_with_it(self, world, two, way):
        """What ended one engine could end the next: the request is not passed on."""
        name, *servers = two
        for server in servers:
            server.way = way
        with pytest.raises(openai.InternalServerError) as caught:
            await chat(world, name)
        assert (caught.value.status_code, caught.value.code) == (503, "model_unavailable")
        assert "retry-after" in caught.value.response.headers
        assert sum(len(server.asked) for server in servers) == 1

    async def test_that_dies_in_a_stream_is_reported_in_the_stream(self, world, two):
        name, *servers = two
        for server in servers:
            server.way = "die in a stream"
        async with world.client() as client:
            stream = await client.chat.completions.create(model=name, messages=HELLO, stream=True)
            assert (await anext(stream)).model == name
            with pytest.raises(openai.APIError, match="failed in its answer"):
                await anext(stream)

    async def test_that_refuses_is_believed(self, world, two):
        name, *servers = two
        for server in servers:
            server.way = "refuse"
        with pytest.raises(openai.BadRequestError, match="too long"):
            await chat(world, name)

    async def test_is_lost_with_its_last_key(self, world, two):
        name, *servers = two
        for server in servers:
            (world.keys_dir / server.id).unlink()
        with pytest.raises(openai.InternalServerError) as caught:
            await chat(world, name)
        assert caught.value.status_code == 503
