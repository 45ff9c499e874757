"""A topic that is deleted and made again while a service runs: no message is hidden by the position that it had."""

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from deploy.bootstrap.kafka import administrator
from deploy.local.site import site
from deploy.local.stack import Stack
from schemas.envelope import Envelope, to_headers
from schemas.parked import ReplayParked
from schemas.topics import PARKED_COMMANDS
from shared.clock import utc_now
from shared.messaging.kafka import kafka_producer
from shared.messaging.topics import KafkaTopics, create_topics
from shared.service import Service
from tests.chaos import pipeline
from tests.chaos.scale import note
from tests.integration.kernel import counting
from tests.integration.kernel.conftest import Writer, new_key
from tests.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.stack

TOPIC = PARKED_COMMANDS.name
REFUSED = """
    SELECT count(DISTINCT headers ->> 'ce_causationid') FROM outbox
     WHERE type = 'CommandRefused' AND headers ->> 'ce_causationid' = ANY($1)"""


class Operator:
    """Sends commands, each of which is refused."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack

    async def send(self, count: int) -> list[str]:
        command = ReplayParked(service="tracker", parked_id=10**9)
        ids = [uuid4().hex for _ in range(count)]
        password = self._stack.kafka_password("admin")
        async with kafka_producer(
            self._stack.kafka_bootstrap, "admin", password, client_id="operator"
        ) as producer:
            for event_id in ids:
                envelope = Envelope(event_id, command.type, 1, "/retune/admin", utc_now(), command.key)
                await producer.send_and_wait(
                    TOPIC,
                    value=command.model_dump_json().encode(),
                    key=command.key.encode(),
                    headers=to_headers(envelope),
                )
        return ids

    async def delete(self) -> None:
        async with administrator(site(self._stack.state)) as admin:
            await admin.delete_topics([TOPIC])

            async def is_gone() -> bool:
                return TOPIC not in await admin.list_topics()

            await until(is_gone, "the topic to be gone")

    async def make(self) -> None:
        async with administrator(site(self._stack.state)) as admin:
            await create_topics(admin, [PARKED_COMMANDS], KafkaTopics())


@pytest.fixture
def operator(stack: Stack) -> Operator:
    return Operator(stack)


async def until_refused(db, ids: list[str]) -> None:
    note("topic made again while a service runs", commands=len(ids))

    async def all_are() -> bool:
        return await db.fetchval(REFUSED, ids) == len(ids)

    await until(all_are, f"all of {len(ids)} commands to be refused")


async def until_handled(db, event_id: str) -> None:
    async def is_handled() -> bool:
        return await db.fetchval("SELECT true FROM effect WHERE event_id = $1", event_id)

    await until(is_handled, "a message of another topic to be handled")


async def until_progress(service: Service) -> None:
    async def has_no_problem() -> bool:
        return service.probe.problems() == []

    await until(has_no_problem, "a healthy process")


async def test_what_lies_before_the_old_position_is_read(service: Service, operator: Operator, db):
    before = await operator.send(4)
    await until_refused(db, before)
    await operator.delete()
    await operator.make()
    await until_refused(db, await operator.send(6))
    await until_progress(service)


async def test_also_where_the_process_was_busy_meanwhile(
    service: Service, operator: Operator, writer: Writer, db, monkeypatch: pytest.MonkeyPatch
):
    """It sees the new topic, longer than the old one was, without having seen that there was none."""
    monkeypatch.setattr(counting, "GATE", asyncio.Event())
    await until_refused(db, await operator.send(4))
    await writer.good(new_key(), tenant="slow")

    async def is_busy() -> bool:
        return service._idle_since is None

    await until(is_busy, "the process to be busy")
    await operator.delete()
    await operator.make()
    sent = await operator.send(8)
    counting.GATE.set()
    await until_refused(db, sent)


async def test_also_where_the_process_starts_again_after_that(
    tracker_env: dict[str, str], operator: Operator, db, monkeypatch: pytest.MonkeyPatch
):
    for name, value in tracker_env.items():
        monkeypatch.setenv(name, value)
    async with counting.build().running():
        await until_refused(db, await operator.send(4))
    await operator.delete()
    await operator.make()
    sent = await operator.send(8)
    async with counting.build().running():
        await until_refused(db, sent)


async def test_who_looks_from_outside_sees_how_far_the_group_has_read(
    service: Service, operator: Operator, stack: Stack, db
):
    """A tool's `Lag` measures nothing before, as a service's does, and so has no ids of topics."""
    await until_refused(db, await operator.send(4))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await pipeline.caught_up(stack, "tracker")


@pytest.fixture
async def missing(operator: Operator) -> AsyncIterator[None]:
    await operator.delete()
    yield
    await operator.make()


async def test_a_topic_that_is_deleted_while_it_is_asked_for_its_first_offsets_ends_no_process(
    service: Service, missing: None, writer: Writer, db
):
    strange = {each for each in service._subscriber.consumer.assignment() if each.topic == TOPIC}
    assert strange
    service._lag.ids.strange |= strange
    await until_handled(db, await writer.good(new_key()))


async def test_a_topic_that_stays_away_makes_the_process_unhealthy_and_holds_up_no_other(
    service: Service, missing: None, writer: Writer, db
):
    async def is_told() -> bool:
        return f"topic {TOPIC} is missing" in service.probe.problems()

    await until(is_told, "the process to say that a topic is missing")
    await until_handled(db, await writer.good(new_key()))
