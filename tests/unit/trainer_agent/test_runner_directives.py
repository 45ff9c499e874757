"""How a runner asks what its attempt shall do, and what it makes of the answers."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from schemas.directives import Directives, DirectivesRequest
from schemas.job import StopReason
from schemas.object_requests import SIGNATURE_HEADER, NotAnswered
from schemas.training import StopTraining
from services.trainer_agent.runner import directives
from services.trainer_agent.runner.directives import DirectiveReader
from services.trainer_agent.runner.settings import Settings
from shared.signatures import PrivateKey, signed_request
from tests.unit.trainer_agent.test_runner_child import RUNNER

KEY = PrivateKey("1" * 64)
NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)
STOP = StopTraining(
    job_id="ftjob-1",
    tenant="acme",
    attempt=1,
    reason=StopReason.CANCEL,
    deadline=NOON + timedelta(seconds=30),
)


class Agent:
    """Answers as trainer_agent does, without holding anything."""

    def __init__(self) -> None:
        self.asked: list[DirectivesRequest] = []
        self.answer = Directives(version="nothing", time=NOON)
        self.failures: list[httpx.Response | httpx.TransportError] = []
        self.ahead = timedelta(0)

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        body = DirectivesRequest.model_validate_json(request.content)
        assert signed_request(request.content, request.headers[SIGNATURE_HEADER]).is_by(KEY.public_key)
        self.asked.append(body)
        await asyncio.sleep(0)
        if self.failures:
            failure = self.failures.pop(0)
            if isinstance(failure, httpx.TransportError):
                raise failure
            return failure
        time = datetime.now(UTC) + self.ahead
        if abs(time - body.time) > timedelta(minutes=2):
            return httpx.Response(403, text=NotAnswered(error="other time", time=time).model_dump_json())
        return httpx.Response(200, text=self.answer.model_dump_json())


@pytest.fixture
def agent() -> Agent:
    return Agent()


@pytest.fixture
async def answers(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[AsyncIterator[Directives]]:
    for name in ("RETRY_SECONDS", "PAUSE_SECONDS"):
        monkeypatch.setattr(directives, name, 0.0)
    key_file = tmp_path / "key"
    key_file.write_text("1" * 64)
    for name, value in {**RUNNER, "RUNNER_NODE_KEY_FILE": str(key_file)}.items():
        monkeypatch.setenv(name, value)
    http = httpx.AsyncClient(transport=httpx.MockTransport(agent))
    reader = DirectiveReader(Settings(), report_id="started-0", http=http).follow()
    yield reader
    await reader.aclose()


async def test_what_is_new_is_yielded_once_and_named_in_the_next_request(agent, answers):
    assert (await anext(answers)).directives == ()
    waiting = asyncio.ensure_future(anext(answers))
    while len(agent.asked) < 4:  # noqa: ASYNC110 - the answers themselves yield
        await asyncio.sleep(0)
    assert not waiting.done(), "nothing is new"
    agent.answer = Directives(version="stop", stop=STOP, time=NOON)
    assert (await waiting).directives == (STOP,)
    assert [body.version for body in agent.asked[:2]] == ["", "nothing"]
    assert {(body.report_id, body.attempt, body.node_index) for body in agent.asked} == {("started-0", 1, 0)}


@pytest.mark.parametrize(
    "failure",
    [
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("no answer"),
        httpx.Response(404, text="an older trainer_agent"),
        httpx.Response(503, text="Postgres is away"),
        httpx.Response(200, text="no answer of the contract"),
    ],
    ids=["away", "silent", "older", "without Postgres", "unreadable"],
)
async def test_an_absence_is_waited_for_without_an_end(agent, answers, failure):
    agent.failures = [failure] * 5
    assert (await anext(answers)).version == "nothing"
    assert len(agent.asked) == 6


@pytest.mark.parametrize("ahead", [timedelta(hours=-1), timedelta(hours=1)])
async def test_a_node_whose_clock_is_wrong_takes_the_time_of_the_refusal(agent, answers, ahead):
    agent.ahead = ahead
    assert (await anext(answers)).version == "nothing"
    assert len(agent.asked) == 2
