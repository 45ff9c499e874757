"""Try it on the page of a model: both sides, what they answer, and what a person reads where one does not."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from schemas.deployment import ReplicaLost
from schemas.model import ModelRegistered
from tests.integration.gateway.pages import HOSTILE, csrf_in, logged_in, words_of
from tests.integration.gateway.world import Replica, World
from tests.waiting import until

pytestmark = pytest.mark.stack

QUESTION = "What is it?"


@pytest.fixture
async def person(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with logged_in(world) as client:
        yield client


async def ask(person: httpx.AsyncClient, version: ModelRegistered, which: str, **form: Any) -> httpx.Response:
    shown = await person.get(f"/models/{version.model_id}")
    data = {"csrf": csrf_in(shown.text), "which": which, "question": QUESTION} | form
    headers = {"accept": "text/event-stream"}
    return await person.post(f"/models/{version.model_id}/ask", data=data, headers=headers)


def text_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    chunks = [json.loads(line) for line in lines]
    assert chunks[-1]["usage"]["completion_tokens"] > 0
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


@pytest.fixture
async def answering(world: World, replica) -> AsyncIterator[tuple[ModelRegistered, Replica, Replica]]:
    """A version that is served, its replica, and one of its base model."""
    version, tuned, base = await world.a_version(), await replica("stream"), await replica("stream")
    base.words, tuned.words = ("of ", "the base"), ("tuned ", HOSTILE)
    await world.serve(version, tuned)
    await world.announce(base, has_base=True)
    await until(lambda: is_ready(world, base.id), "the base model")
    yield version, tuned, base
    await lose(world, base)


async def is_ready(world: World, replica_id: str) -> bool:
    query = "SELECT is_ready FROM replica WHERE replica_id = $1"
    return bool(await world.db.fetchval(query, replica_id))


async def lose(world: World, server: Replica) -> None:
    lost = ReplicaLost(
        pool=f"serve-{world.base_sha[:12]}",
        base_sha=world.base_sha,
        replica=server.address,
        reason="of this test alone",
    )
    await world.voices.say("serving_controller", lost)

    async def is_gone() -> bool:
        return not await is_ready(world, server.id)

    await until(is_gone, "the replica to be gone")


async def test_both_sides_answer_one_question_as_programs_are_answered(world, answering, person):
    version, tuned, base = answering
    settings = {"system": "Be brief.", "temperature": "0.5", "max_tokens": "7"}
    assert text_of(await ask(person, version, "base", **settings)) == "of the base"
    answer = await ask(person, version, "version", **settings)
    assert text_of(answer) == f"tuned {HOSTILE}"
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["content-security-policy"].startswith("default-src 'self'")
    ((one,), (other,)) = tuned.asked, base.asked
    assert one.pop("model").startswith(f"{version.full_name}@")
    assert other.pop("model") == f"{world.base_name}@{world.base_sha}"
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    assert one == other == {
        "messages": messages,
        "temperature": 0.5,
        "max_tokens": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip


async def test_what_is_typed_is_checked_as_programs_are(answering, person):
    version, tuned, _ = answering
    for form, code in (({"temperature": "3"}, "invalid_value"), ({"csrf": "other"}, "csrf_failed")):
        refused = await ask(person, version, "version", **form)
        assert refused.json()["error"]["code"] == code
    async with httpx.AsyncClient(base_url=person.base_url) as nobody:
        answer = await nobody.post(f"/models/{version.model_id}/ask", data={"question": QUESTION})
        assert answer.status_code == 401
    assert tuned.asked == []


async def test_another_tenants_version_does_not_exist(world, answering):
    version, tuned, _ = answering
    async with logged_in(world, "other") as person:
        csrf = csrf_in((await person.get("/models")).text)
        data = {"csrf": csrf, "which": "version", "question": QUESTION}
        answer = await person.post(f"/models/{version.model_id}/ask", data=data)
        assert answer.status_code == 404
    assert tuned.asked == []


async def test_a_refusal_of_the_replica_is_passed_on(answering, person):
    version, tuned, _ = answering
    tuned.way = "refuse"
    answer = await ask(person, version, "version")
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "too long")


async def test_a_version_that_is_not_deployed_says_how_to_deploy_it(world, person):
    version = await world.a_version()
    words = words_of(await person.get(f"/models/{version.model_id}"))
    command = f"retune deployments deploy {version.full_name}"
    assert "It is not deployed. Press Deploy above, or:" in words
    assert f"No replica of {world.base_name} is ready." in words
    assert words.count(command) == 2
    assert "neither answers now" in words
    answer = (await ask(person, version, "version")).json()
    assert (answer["error"]["code"], answer["command"]) == ("model_not_deployed", command)


async def test_an_engine_that_is_away_is_reported_in_words(answering, world, person):
    version, tuned, _ = answering
    tuned.way = "break"
    answer = (await ask(person, version, "version")).json()
    assert (answer["error"]["code"], answer["command"]) == ("model_unavailable", "retune deployments list")
    assert "failed while it answered" in answer["error"]["message"]
    await lose(world, tuned)
    words = words_of(await person.get(f"/models/{version.model_id}"))
    assert "It is deployed, and no replica that has it is ready. Ask again in a few seconds." in words
    assert "neither answers now" not in words, "the base model does"


async def test_a_deployment_with_the_base_models_name_is_no_base_model(answering, world, person):
    version, tuned, base = answering
    ready = world.ready(version, tuned.address, slot=world.base_name)
    await world.voices.say("registry", world.approved(version, slot=world.base_name))
    await world.voices.say("serving_controller", ready)
    await until(lambda: world.state_of(world.base_name, "ready"), "the slot")
    try:
        words = words_of(await person.get(f"/models/{version.model_id}"))
        assert "A deployment of yours has the name of the base model and answers in its place" in words
        answer = await ask(person, version, "base")
        assert (answer.status_code, base.asked, tuned.asked) == (400, [], [])
        assert answer.json()["command"] == f"retune deployments remove {world.base_name}"
    finally:
        await world.db.execute("DELETE FROM route WHERE slot = $1", world.base_name)
