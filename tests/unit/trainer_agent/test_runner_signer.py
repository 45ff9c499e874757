"""How a node asks trainer_agent for requests, and what it makes of the answers."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from schemas.object_requests import (
    SIGNATURE_HEADER,
    NotAnswered,
    ObjectAnswer,
    ObjectAnswers,
    ObjectRequest,
    ObjectRequests,
    PresignedRequest,
)
from services.trainer_agent.runner.settings import Settings
from services.trainer_agent.runner.signer import NodeSigner
from shared.errors import StorageUnavailable
from shared.signatures import PrivateKey, signed_request
from tests.unit.trainer_agent.test_runner_child import RUNNER

KEY = PrivateKey("1" * 64)
HOUR = timedelta(hours=1)


class Agent:
    """Answers as trainer_agent does."""

    def __init__(self) -> None:
        self.asked: list[ObjectRequests] = []
        self.ahead = timedelta(0)
        self.refused = ""
        self.status: int | None = None
        self.now = 0.0

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0)
        body = ObjectRequests.model_validate_json(request.content)
        assert signed_request(request.content, request.headers[SIGNATURE_HEADER]).is_by(KEY.public_key)
        self.asked.append(body)
        if self.status is not None:
            return httpx.Response(self.status, text="no")
        time = datetime.now(UTC) + self.ahead
        if abs(time - body.time) > timedelta(minutes=2):
            return httpx.Response(403, text=NotAnswered(error="other time", time=time).model_dump_json())
        answers = [self._answer(f"{one.key}?{len(self.asked)}") for one in body.requests]
        return httpx.Response(200, text=ObjectAnswers(answers=tuple(answers)).model_dump_json())

    def _answer(self, url: str) -> ObjectAnswer:
        if self.refused:
            return ObjectAnswer(refused=self.refused)
        return ObjectAnswer(request=PresignedRequest(method="GET", url=url, headers={}, seconds=300))


@pytest.fixture
def agent() -> Agent:
    return Agent()


@pytest.fixture
def signer(agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeSigner:
    key_file = tmp_path / "key"
    key_file.write_text("1" * 64)
    for name, value in {**RUNNER, "RUNNER_NODE_KEY_FILE": str(key_file)}.items():
        monkeypatch.setenv(name, value)
    http = httpx.AsyncClient(transport=httpx.MockTransport(agent))
    return NodeSigner(Settings(), http=http, monotonic=lambda: agent.now)


def a_request(key: str) -> ObjectRequest:
    return ObjectRequest(operation="get", key=key)


async def test_a_request_is_sent_again_while_it_lives_and_then_asked_for(agent, signer):
    first = await signer.sign(a_request("x"))
    agent.now = 179.0
    assert await signer.sign(a_request("x")) == first
    agent.now = 181.0
    second = await signer.sign(a_request("x"))
    assert second != first
    assert await signer.sign(a_request("x"), fresh=True) != second
    assert len(agent.asked) == 3


async def test_what_is_asked_meanwhile_goes_together(agent, signer):
    keys = [f"key {number}" for number in range(40)]
    signed = await asyncio.gather(*(signer.sign(a_request(key)) for key in keys))
    assert [each.url.partition("?")[0] for each in signed] == keys
    assert [len(each.requests) for each in agent.asked] == [32, 8]


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
async def test_a_node_whose_clock_is_wrong_takes_the_time_of_the_refusal(agent, signer, ahead):
    agent.ahead = ahead
    await signer.sign(a_request("x"))
    await signer.sign(a_request("y"))
    assert len(agent.asked) == 3, "one was refused, and none after it"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"refused": "not an object of it"}, "not an object of it"),
        ({"status": 503}, "trainer_agent: 503: no"),
        ({"status": 404}, "trainer_agent: 404: no"),
    ],
)
async def test_what_is_not_given_is_storage_that_is_away(agent, signer, changes, problem):
    for name, value in changes.items():
        setattr(agent, name, value)
    with pytest.raises(StorageUnavailable, match=problem):
        await signer.sign(a_request("x"))
    agent.status, agent.refused = None, ""
    assert await signer.sign(a_request("x"))


async def test_one_who_no_longer_waits_keeps_nobody_else_from_an_answer(agent, signer):
    waiting = [asyncio.create_task(signer.sign(a_request(key))) for key in ("x", "y")]
    await asyncio.sleep(0)
    waiting[0].cancel()
    assert (await waiting[1]).url == "y?1"


def test_no_text_of_a_request_has_its_address():
    request = PresignedRequest(method="GET", url="secret", headers={}, seconds=1)
    assert "secret" not in f"{request!r} {request}"
    assert "secret" in json.dumps(request.model_dump())
