"""Who may say what: tenants only their commands, each topic only its types, each event only one payload."""

from collections.abc import AsyncIterator
from random import Random

import asyncpg
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import GroupAuthorizationFailedError, TopicAuthorizationFailedError

from deploy.local.stack import Stack
from schemas.generate.__main__ import all_messages
from schemas.topics import TOPICS, tenant_commands, tenant_events, tenant_topics
from shared.messaging.kafka import kafka_producer, sasl
from shared.service import Service
from tests.chaos.consumers import HEARD, LISTENERS, TENANT, consumers, record_of, sample
from tests.chaos.scale import note, scaled, seed
from tests.chaos.snapshots import state_of

pytestmark = [pytest.mark.stack, pytest.mark.timeout(scaled(1200, 1200, 3600))]

WHY = 'SELECT reason, blocks FROM {service}.parked WHERE topic = $1 AND "offset" = $2'
HANDLED = ("applied", "refused")


@pytest.fixture(scope="module")
async def services(stack: Stack) -> AsyncIterator[dict[str, Service]]:
    async with consumers(stack) as services:
        yield services


async def test_a_tenants_kafka_user_writes_its_own_topic_alone(stack: Stack):
    user = f"tenant-{TENANT}"
    password = stack.kafka_password(user)
    async with kafka_producer(stack.kafka_bootstrap, user, password, client_id="forger") as producer:
        for topic in (*TOPICS, tenant_events(TENANT), *tenant_topics("other")):
            with pytest.raises(TopicAuthorizationFailedError):
                await producer.send_and_wait(topic.name, b"{}", key=b"forged")
        await producer.send_and_wait(tenant_commands(TENANT).name, b"{}", key=b"its own")


@pytest.mark.parametrize(
    ("topic", "group", "error"),
    [
        (tenant_commands(TENANT), None, TopicAuthorizationFailedError),
        (tenant_events("other"), None, TopicAuthorizationFailedError),
        (tenant_events(TENANT), "gateway", GroupAuthorizationFailedError),
        (tenant_events(TENANT), "tenant-other.x", GroupAuthorizationFailedError),
    ],
)
async def test_a_tenants_kafka_user_reads_its_own_facts_alone(stack: Stack, topic, group, error):
    user = f"tenant-{TENANT}"
    consumer = AIOKafkaConsumer(
        topic.name,
        bootstrap_servers=stack.kafka_bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        **sasl(user, stack.kafka_password(user)),
    )
    try:
        with pytest.raises(error):
            await _first_record(consumer)
    finally:
        await consumer.stop()


async def _first_record(consumer: AIOKafkaConsumer) -> object:
    await consumer.start()
    return await consumer.getone()


async def test_a_type_on_a_topic_that_does_not_carry_it_is_parked_and_changes_nothing(
    services: dict[str, Service], db: asyncpg.Pool
):
    random, repeat = Random(seed()), f"repeat with CHAOS_SEED={seed()}"
    before = {service: await state_of(db, service) for service in LISTENERS}
    parked = 0
    for service, topic in HEARD:
        foreign = [message for message in all_messages() if message not in topic.messages]
        for message in random.sample(foreign, k=min(scaled(2, 4, 1_000), len(foreign))):
            record = record_of(topic, sample(message))
            where = f"{service} on {topic.name}: {message.type}; {repeat}"
            assert await services[service]._consumer.consume(record) == "parked", where
            row = await db.fetchrow(WHY.format(service=service), topic.name, record.offset)
            assert row["reason"] == "unknown_type", where
            parked += 1
    assert {service: await state_of(db, service) for service in LISTENERS} == before
    note("foreign types", parked=parked)


async def test_an_event_that_comes_again_with_another_payload_is_parked_and_holds_nothing_back(
    services: dict[str, Service], db: asyncpg.Pool
):
    """Over every type that a service hears; one that was only waiting or ignored has left nothing to twin."""
    twins = 0
    for service, topic in HEARD:
        for message in topic.messages:
            consumer, original = services[service]._consumer, sample(message)
            first = record_of(topic, original)
            outcome = await consumer.consume(first)
            before = await state_of(db, service)
            event_id = dict(first.headers)["ce_id"].decode()
            twin = record_of(topic, original, event_id=event_id, sequence=2, field_of_a_forger=True)
            again = await consumer.consume(twin)
            assert await state_of(db, service) == before, f"{service}: {message.type}"
            if outcome in HANDLED:
                twins += 1
                assert again == "parked", f"{service}: {message.type} was {outcome}, its twin {again}"
                row = await db.fetchrow(WHY.format(service=service), topic.name, twin.offset)
                assert tuple(row) == ("other_payload", False), f"{service}: {message.type}"
    assert twins > 50
    note("other payloads", parked=twins)
