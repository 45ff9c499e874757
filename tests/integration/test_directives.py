"""What a node learns of its attempt's directives with its own key, when, and what nobody else learns."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest

from deploy.local.environment import nodes_listener, process_name
from deploy.local.state import LOOPBACK
from schemas import layout
from schemas.directives import HELD_FOR, MAX_BODY_BYTES, ROUTE, Directives, DirectivesRequest
from schemas.job import JobScheduled, StopReason
from schemas.training import RunnerStarted, StartTraining, StopTraining
from services.provisioner.model import node_id
from tests.integration.attempts import TENANT, Attempts
from tests.integration.nodes import attempts
from tests.integration.signed_requests import STRANGER, ask_signed
from tests.node_keys import signer_of
from tests.waiting import until

__all__ = ["attempts"]

pytestmark = pytest.mark.stack

PATIENCE = httpx.Timeout(60.0)


@dataclass
class Asker:
    """Asks one process of trainer_agent, with the key of a node or another one."""

    attempts: Attempts
    http: httpx.AsyncClient

    async def ask(
        self, scheduled: JobScheduled, *, report_id: str = "nobody's", version: str = "", **how: Any
    ) -> httpx.Response:
        asked = {"report_id": report_id, "version": version}
        return await ask_signed(self.http, ROUTE, DirectivesRequest, scheduled, **asked, **how)

    async def answer(self, scheduled: JobScheduled, **how: Any) -> Directives:
        answer = await self.ask(scheduled, **how)
        assert answer.status_code == 200, answer.text
        return Directives.model_validate_json(answer.content)


def asker_of(attempts: Attempts, instance: int = 0) -> Asker:
    port = attempts.stack.state.port(nodes_listener(process_name("trainer_agent", instance)))
    return Asker(attempts, httpx.AsyncClient(base_url=f"http://{LOOPBACK}:{port}", timeout=PATIENCE))


@pytest.fixture(scope="module")
async def asker(attempts: Attempts) -> AsyncIterator[Asker]:
    asker = asker_of(attempts)
    async with asker.http:
        yield asker


@pytest.fixture
async def running(attempts: Attempts, asker: Asker) -> JobScheduled:
    """An attempt whose two nodes are known, and none of which has reported."""
    scheduled = await attempts.schedule(nodes=2)
    await attempts.provision(scheduled)
    await until_answered(asker, scheduled)
    return scheduled


async def until_answered(asker: Asker, scheduled: JobScheduled) -> None:
    async def is_answered() -> bool:
        return (await asker.ask(scheduled)).status_code == 200

    await until(is_answered, "the node is answered")


async def report_start(attempts: Attempts, scheduled: JobScheduled, node: int) -> str:
    """Report as the node's runner does. Return the id of the report."""
    name = layout.attempt_name(scheduled.job_id, scheduled.attempt)
    started = RunnerStarted(
        job_id=scheduled.job_id,
        tenant=TENANT,
        attempt=scheduled.attempt,
        node_index=node,
        node_id=node_id(name, node),
        host=LOOPBACK,
        port=4000 + node,
    )
    signer = signer_of(scheduled.job_id, scheduled.attempt, node=node)
    return await attempts.voices.say("runner", started, event_id=uuid4().hex, signer=signer)


async def started(attempts: Attempts, asker: Asker, running: JobScheduled) -> list[str]:
    """Report for both nodes. Return the ids of the reports, once training has begun."""
    ids = [await report_start(attempts, running, node) for node in (0, 1)]
    await attempts.until(running.job_id, StartTraining)
    return ids


async def test_a_request_is_held_until_the_gang_is_complete(attempts, asker, running):
    ids = [await report_start(attempts, running, 0), uuid4().hex]
    nothing = await asker.answer(running, report_id=ids[0])
    assert nothing.directives == ()
    held = asyncio.ensure_future(asker.answer(running, report_id=ids[0], version=nothing.version))
    ids[1] = await report_start(attempts, running, 1)
    answer = await held
    record = await attempts.until(running.job_id, StartTraining)
    assert answer.directives == (record,)
    assert [member.node_index for member in answer.start.members] == [0, 1]
    other = await asker.answer(running, node=1, report_id=ids[1])
    assert other.directives == (record,)


async def test_a_request_without_news_is_answered_before_its_client_gives_up(asker, running):
    nothing = await asker.answer(running)
    began = asyncio.get_running_loop().time()
    again = await asker.answer(running, version=nothing.version)
    assert again.version == nothing.version
    assert asyncio.get_running_loop().time() - began >= HELD_FOR.total_seconds() - 0.1


async def test_a_stop_is_answered_by_each_process_whichever_heard_of_it(attempts, asker, running):
    ids = await started(attempts, asker, running)
    await attempts.stack.start("trainer_agent", instance=1)
    await attempts.stack.wait_healthy("trainer_agent-1")
    other = asker_of(attempts, 1)
    async with other.http:
        for number, seconds in ((1, 30), (2, 20)):  # of the second, each process knows the first already
            answers = [await each.answer(running, report_id=ids[0]) for each in (asker, other)]
            assert answers[0].version == answers[1].version
            held = [
                asyncio.ensure_future(each.answer(running, report_id=ids[0], version=answers[0].version))
                for each in (asker, other)
            ]
            await attempts.stop(running, seconds=seconds)
            stops = {answer.stop for answer in await asyncio.gather(*held)}
            assert stops == {await attempts.until(running.job_id, StopTraining, times=number)}
    await attempts.stack.stop("trainer_agent-1")


async def test_a_runner_that_began_again_on_an_empty_disk_starts_nothing(attempts, asker, running):
    await started(attempts, asker, running)
    assert (await asker.answer(running, report_id=uuid4().hex)).directives == ()


async def test_a_runner_of_an_older_attempt_is_sent_away(attempts, asker, running):
    newer = await attempts.schedule(running.job_id, attempt=2)
    await attempts.provision(newer)
    await until_answered(asker, newer)

    async def is_sent_away() -> bool:
        answer = await asker.answer(running)
        return answer.stop is not None and answer.stop.reason is StopReason.FAILURE

    await until(is_sent_away, "the older attempt is over")
    version = (await asker.answer(running)).version
    assert (await asker.answer(running)).version == version, "it is no news again and again"


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"signer": STRANGER}, "not signed with its key"),
        ({"signer": signer_of("another-job")}, "not signed with its key"),
        ({"alter": b" "}, "not signed with its key"),
        ({"node": 7}, "not a node of the attempt"),
        ({"at": timedelta(minutes=-3)}, "signed at"),
        ({"at": timedelta(minutes=3)}, "signed at"),
    ],
    ids=["a key of its own", "of another job", "another body", "another node", "an old one", "of tomorrow"],
)
async def test_who_is_not_the_node_learns_nothing(asker, running, how, reason):
    answer = await asker.ask(running, **how)
    assert (answer.status_code, reason in answer.json()["error"]) == (403, True)
    assert answer.json().keys() == {"error", "time"}


async def test_a_nodes_key_opens_nothing_of_another_node_attempt_or_job(attempts, asker, running):
    ids = await started(attempts, asker, running)
    newer = await attempts.schedule(running.job_id, attempt=2)
    other = await attempts.schedule()
    for each in (newer, other):
        await attempts.provision(each)
        await until_answered(asker, each)
    own = signer_of(running.job_id, 1)
    for asked in (
        await asker.ask(running, node=1, report_id=ids[1], signer=own),
        await asker.ask(newer, signer=own),
        await asker.ask(other, signer=own),
    ):
        assert (asked.status_code, "not signed with its key" in asked.json()["error"]) == (403, True)


async def test_what_is_no_request_is_answered_with_what_is_wrong(asker):
    nothing = await asker.http.post(ROUTE, content=b"{}")
    assert (nothing.status_code, nothing.json()["error"]) == (400, "job_id: Field required")
    assert (await asker.http.post(ROUTE, content=b"x" * (MAX_BODY_BYTES + 1))).status_code == 413


async def test_an_attempt_that_is_not_known_yet_is_asked_for_again(attempts, asker):
    answer = await asker.ask(attempts.a_schedule())
    assert (answer.status_code, "has no nodes that are known yet" in answer.json()["error"]) == (503, True)


async def test_a_process_that_is_to_end_holds_no_request(attempts, asker, running):
    nothing = await asker.answer(running)
    held = asyncio.ensure_future(asker.answer(running, version=nothing.version))
    began = asyncio.get_running_loop().time()
    await asyncio.sleep(0.1)  # it is on its way; a later one would be refused, and the test say so
    await attempts.stack.stop("trainer_agent")
    assert (await held).version == nothing.version
    assert asyncio.get_running_loop().time() - began < HELD_FOR.total_seconds() / 2
    await attempts.stack.start("trainer_agent")
    await attempts.stack.wait_healthy("trainer_agent")
