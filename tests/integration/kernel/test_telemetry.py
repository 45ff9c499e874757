"""What an operator sees: lag, outbox, parked counts, health by progress, and a trace that follows the message."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import RecordsToDelete
from aiokafka.errors import CommitFailedError
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import REGISTRY

import shared.loops
import shared.service
from deploy.bootstrap.kafka import administrator
from deploy.local.site import site
from deploy.local.stack import Stack
from schemas.job import CancelJob
from schemas.topics import TOPICS, Topic
from services.gateway.settings import Settings as GatewaySettings
from shared.health import asgi_app
from shared.messaging import lag
from shared.messaging.kafka import KafkaFailed, sasl
from shared.messaging.kafka_health import ClientUnresponsive
from shared.messaging.lag import Lag
from shared.messaging.login import Login
from shared.messaging.reader import send
from shared.messaging.turns import Turns
from shared.service import Service, WrongTopics
from shared.settings import Timing
from shared.telemetry import tracing
from tests.integration.kernel import counting
from tests.integration.kernel.conftest import NODE_EVENTS, costs_of, new_key
from tests.waiting import until

pytestmark = pytest.mark.stack

TAKE_LEASE = """
    UPDATE lease SET owner = 'another', token = token + 1, expires_at = clock_timestamp() + interval '1 hour'"""
MAKE_OLD = """
    UPDATE outbox SET created_at = clock_timestamp() - interval '100 s' WHERE id IN (SELECT id FROM unpublished)"""


@pytest.fixture
async def service(tracker_env, monkeypatch) -> AsyncIterator[Service]:
    """It measures all the time and calls a standstill one after half a second."""
    for name, value in tracker_env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(shared.service, "MEASURE_EVERY", timedelta(seconds=0.1))
    monkeypatch.setattr(lag, "STALLED_AFTER_SECONDS", 0.5)
    service = counting.build(counting.Settings(timing=Timing(lease_renew=timedelta(seconds=0.1))))
    async with service.running():
        yield service


@asynccontextmanager
async def no_lifespan() -> AsyncIterator[None]:
    yield


async def ask(service: Service, path: str) -> httpx.Response:
    transport = httpx.ASGITransport(asgi_app(service.probe, lifespan=no_lifespan))
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        return await client.get(path)


async def problems(service: Service) -> list[str]:
    answer = await ask(service, "/healthz")
    reasons = answer.json()["problems"]
    assert answer.status_code == (503 if reasons else 200)
    return reasons


def metric(name: str, service: str = "tracker", **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, {"service": service, **labels})


async def until_metric(expected: float, name: str, **labels: str) -> None:
    async def has_it() -> bool:
        return metric(name, **labels) == expected

    await until(has_it, f"{name} {labels} to be {expected:g}")


async def test_a_consumer_that_stands_still_is_seen_in_lag_and_health(service, writer):
    topic = {"topic": NODE_EVENTS}
    await until_metric(0, "consumer_lag_records", **topic)
    counting.GATE.clear()
    try:
        for _ in range(3):
            await writer.good(new_key(), tenant="slow")
        reasons = await until(lambda: problems(service), "the service to say that it is unhealthy")
        assert f"no progress on {NODE_EVENTS} for a minute" in reasons
        await until_metric(3, "consumer_lag_records", **topic)
    finally:
        counting.GATE.set()
    await until_metric(0, "consumer_lag_records", **topic)

    async def is_healthy() -> bool:
        return not await problems(service)

    await until(is_healthy, "the service to be healthy again")


@pytest.fixture
async def end(monkeypatch) -> asyncio.Future[tuple[str, BaseException]]:
    """Where the process would have ended, and why."""
    monkeypatch.setattr(shared.service, "STALLED_AFTER_SECONDS", 0.5)
    end = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(shared.loops, "exit_process", lambda where, error: end.set_result((where, error)))
    return end


async def test_a_consumer_that_hands_over_nothing_ends_the_process(service, writer, end):
    consumer = service._subscriber.consumer
    consumer.pause(*consumer.assignment())
    await writer.good(new_key())
    where, error = await asyncio.wait_for(end, 30)
    assert (where, type(error)) == ("measure", ClientUnresponsive)
    assert str(error).startswith(f"records lie for a minute in {NODE_EVENTS}/0, and")
    consumer.resume(*consumer.assignment())


async def test_a_consumer_whose_group_gives_it_nothing_ends_the_process(service, writer, end, monkeypatch):
    consumer = service._subscriber.consumer
    consumer.pause(*consumer.assignment())
    with monkeypatch.context() as during:
        during.setattr(consumer, "assignment", frozenset)
        await writer.good(new_key())
        assert isinstance((await asyncio.wait_for(end, 30))[1], ClientUnresponsive)
    consumer.resume(*consumer.assignment())


async def test_what_lies_with_another_process_is_left_to_it(service, writer, end, monkeypatch):
    consumer = service._subscriber.consumer
    partitions, measured = consumer.assignment(), []
    consumer.pause(*partitions)
    require_progress = service._require_progress
    with monkeypatch.context() as during:
        others = frozenset(each for each in partitions if each.topic != NODE_EVENTS)
        during.setattr(consumer, "assignment", lambda: others)
        during.setattr(
            service, "_require_progress", lambda stalled: measured.append(require_progress(stalled))
        )
        await writer.good(new_key())
        await until(lambda: problems(service), "the service to say that it is unhealthy")
        before = len(measured)

        async def is_measured_again() -> bool:
            return end.done() or len(measured) >= before + 10

        await until(is_measured_again, "ten more rounds")
        assert not end.done()
    consumer.resume(*partitions)


async def test_a_client_that_does_not_say_how_far_the_group_is_ends_the_process(service, end, monkeypatch):
    monkeypatch.setattr(shared.service, "MEASURE_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(service._lag, "measure", asyncio.Event().wait)
    where, error = await asyncio.wait_for(end, 30)
    assert (where, type(error)) == ("measure", ClientUnresponsive)


async def test_a_group_that_cannot_be_joined_ends_the_process(tracker_env, end, monkeypatch):
    for name, value in tracker_env.items():
        monkeypatch.setenv(name, value)
    short = dict.fromkeys(("handler_budget", "revoke_wait", "rebalance_timeout", "session_timeout"), 0.1)
    timing = Timing(heartbeat=timedelta(seconds=0.01), **short)
    service = counting.build(counting.Settings(timing=timing))
    monkeypatch.setattr(service._broker, "start", asyncio.Event().wait)
    async with service.running():
        where, error = await asyncio.wait_for(end, 30)
    assert (where, type(error)) == ("consume", ClientUnresponsive)


async def test_whatever_kafkas_client_throws_ends_the_process(service, end, monkeypatch):
    """What it took before is lost to us, so what was committed is read again by the next process."""

    async def take(_turns: Any, **_: Any) -> list[Any]:
        raise KeyError("an error of the client's own")

    monkeypatch.setattr(Turns, "take", take)
    where, error = await asyncio.wait_for(end, 30)
    assert (where, type(error)) == ("consume", KeyError)


async def test_a_service_without_one_of_its_topics_ends_and_says_which(tracker_env, end, monkeypatch):
    for name, value in tracker_env.items():
        monkeypatch.setenv(name, value)
    topic = Topic("missing.events", writers=("tracker",), messages=())
    monkeypatch.setattr(shared.service, "TOPICS", (*TOPICS, topic))
    monkeypatch.setattr(shared.service, "TOPICS_SECONDS", 0.1)
    async with counting.build().running():
        where, error = await asyncio.wait_for(end, 30)
    assert (where, type(error)) == ("consume", WrongTopics)
    assert str(error).startswith("topic missing.events: it is missing; `python -m deploy.bootstrap`")


async def test_an_outbox_that_is_not_published_is_seen_in_its_age_and_health(service, writer, db):
    await until_metric(0, "outbox_rows")
    await db.execute(TAKE_LEASE)

    async def has_lost() -> bool:
        return service._relay._lease.token is None

    await until(has_lost, "the relay to lose its lease")
    event_id = await writer.good(new_key())
    await until_metric(1, "outbox_rows")
    await db.execute(MAKE_OLD)
    [reason] = await until(lambda: problems(service), "the service to say that it is unhealthy")
    assert reason.startswith("oldest event not in Kafka is 10")
    assert 100 <= metric("outbox_oldest_row_seconds") < 110
    await db.execute("UPDATE lease SET expires_at = clock_timestamp()")
    await until_metric(0, "outbox_rows")
    await until_metric(0, "outbox_oldest_row_seconds")
    assert await db.fetchval("SELECT true FROM effect WHERE event_id = $1", event_id)


async def test_what_was_parked_is_counted_by_reason(service, writer, db):
    labels = {"topic": NODE_EVENTS, "reason": "rejected"}
    before = metric("messages_parked_total", **labels) or 0
    for _ in range(2):
        await writer.good(new_key(), tenant="hopeless")
    await until_metric(before + 2, "messages_parked_total", **labels)
    blocking = await db.fetchval("SELECT count(*) FROM parked WHERE state = 'parked' AND blocks")
    assert blocking >= 2
    await until_metric(blocking, "messages_parked_blocking")

    async def is_in_health() -> bool:
        return (await ask(service, "/healthz")).json()["parked_blocking"] == blocking

    await until(is_in_health, "the process to say how many messages block")
    text = (await ask(service, "/metrics/")).text
    assert f'messages_parked_total{{reason="rejected",service="tracker",topic="{NODE_EVENTS}"}}' in text


async def test_lag_counts_what_tenants_write(stack: Stack, monkeypatch):
    for name, value in stack.service_env("gateway").items():
        monkeypatch.setenv(name, value)
    measured = Lag(GatewaySettings(), group="gateway")

    async def is_measured() -> bool:
        with suppress(KafkaFailed):
            await measured.measure()
            return True
        return False

    try:
        await until(is_measured, "Kafka to have a coordinator for groups")
        demo, other = (
            metric("consumer_lag_records", "gateway", topic=f"tenant.{tenant}.commands")
            for tenant in stack.tenants
        )
        command = CancelJob(job_id=f"ftjob-{uuid4().hex[:16]}", tenant="demo")
        login = Login(stack.kafka_bootstrap, "tenant-demo", stack.kafka_password("tenant-demo"))
        await send(login, command, writer="tenant-demo", topic="tenant.demo.commands")
        await measured.measure()
    finally:
        await measured.close()
    assert metric("consumer_lag_records", "gateway", topic="tenant.demo.commands") == demo + 1
    assert metric("consumer_lag_records", "gateway", topic="tenant.other.commands") == other


async def test_what_was_deleted_unread_is_no_lag(stack: Stack, monkeypatch):
    for name, value in stack.service_env("gateway").items():
        monkeypatch.setenv(name, value)
    topic, bootstrap = "tenant.other.commands", stack.kafka_bootstrap
    gateway = sasl("gateway", stack.kafka_password("gateway"))
    async with (
        AIOKafkaConsumer(
            bootstrap_servers=bootstrap, group_id="gateway", enable_auto_commit=False, **gateway
        ) as consumer,
        administrator(site(stack.state)) as admin,
    ):
        partitions = [TopicPartition(topic, number) for number in range(3)]
        consumer.assign(partitions)
        offsets = await consumer.end_offsets(partitions)

        async def is_committed() -> bool:
            """Once Kafka has given up the members of a gateway that another test has stopped."""
            try:
                await consumer.commit(offsets)
            except CommitFailedError:
                return False
            return True

        await until(is_committed, "the group to have no members")
        command = CancelJob(job_id=f"ftjob-{uuid4().hex[:16]}", tenant="other")
        login = Login(bootstrap, "tenant-other", stack.kafka_password("tenant-other"))
        await send(login, command, writer="tenant-other", topic=topic)
        ends = await consumer.end_offsets(partitions)
        await admin.delete_records({each: RecordsToDelete(end) for each, end in ends.items()})
    measured = Lag(GatewaySettings(), group="gateway")
    try:
        await measured.measure()
    finally:
        await measured.close()
    assert metric("consumer_lag_records", "gateway", topic=topic) == 0


async def test_the_trace_continues_from_what_is_consumed_to_what_is_emitted(
    service, writer, login, monkeypatch
):
    monkeypatch.setattr(tracing, "_TRACER", TracerProvider().get_tracer("test"))
    key, trace_id, span_id = new_key(), uuid4().hex, uuid4().hex[:16]
    event_id = await writer.good(key, traceparent=f"00-{trace_id}-{span_id}-01", correlation_id="submit-1")

    async def emitted() -> list[Any]:
        return await costs_of(login, key)

    [cost] = await until(emitted, "the fact that follows")
    assert (cost.envelope.causation_id, cost.envelope.correlation_id) == (event_id, "submit-1")
    version, trace, parent, flags = cost.envelope.traceparent.split("-")
    assert (version, trace, flags) == ("00", trace_id, "01")
    assert parent != span_id


class TestLogs:
    async def test_carry_the_event_and_its_trace(self, victim, writer, db):
        key, trace_id = new_key(), uuid4().hex
        async with victim.alive():
            event_id = await writer.good(key, tenant="hopeless", traceparent=f"00-{trace_id}-{'1' * 16}-01")

            async def is_parked() -> bool:
                return await db.fetchval("SELECT true FROM parked WHERE event_id = $1", event_id)

            await until(is_parked, "the message parked")
        [line] = [line for line in victim.log_lines() if line["event"] == "message parked"]
        assert (line["event_id"], line["trace_id"], line["key"]) == (event_id, trace_id, key)
        assert (line["service"], line["reason"], line["level"]) == ("tracker", "rejected", "warning")


async def test_how_long_the_oldest_message_has_waited_is_seen(service, writer, db):
    key = new_key()
    await writer.good(key, tenant="orphan")

    async def is_seen() -> bool:
        return (metric("messages_oldest_waiting_seconds") or 0) > 0

    await until(is_seen, "the age of the message that waits")
    await db.execute("INSERT INTO parent VALUES ($1)", key)
    await until_metric(0, "messages_oldest_waiting_seconds")
