"""Batches that cannot be read beside good ones: nobody stops, no offset is skipped, no good record is lost."""

from collections.abc import AsyncIterator

import asyncpg
import pytest
from aiokafka import TopicPartition

from deploy.local.stack import Stack
from schemas.job import CancelJob
from schemas.topics import tenant_commands
from services.gateway import handlers
from services.gateway.settings import Settings as GatewaySettings
from shared.audit.chain import begin, extend
from shared.messaging.login import Login
from shared.messaging.partitions import PartitionReader
from shared.messaging.reader import TopicReader
from shared.partition import Partition
from shared.record import Record
from shared.service import Service
from tests.chaos import pipeline
from tests.chaos.consumers import TENANT, record_of, sample
from tests.chaos.hostile_batches import HOSTILE, READABLE, SPOIL, Batches, writer
from tests.chaos.scale import note
from tests.chaos.source import Source, id_of
from tests.integration.kernel.conftest import NODE_EVENTS, new_key
from tests.waiting import until

pytestmark = pytest.mark.stack

PARTITIONS = range(3)
PARKED = """SELECT partition, "offset", reason, value_bytes, length(value) AS kept FROM {service}.parked WHERE topic = $1"""
APPLIED = "SELECT event_id FROM {service}.inbox WHERE event_id = ANY($1)"


async def committed(service: Service, topic: str) -> dict[int, tuple[int, int]]:
    """Of each partition what the group has committed, and where it ends."""
    partitions = [TopicPartition(topic, number) for number in PARTITIONS]
    consumer = service._subscriber.consumer
    ends = await consumer.end_offsets(partitions)
    return {each.partition: (await consumer.committed(each) or 0, ends[each]) for each in partitions}


async def until_read(service: Service, topic: str) -> None:
    async def is_read() -> bool:
        offsets = await committed(service, topic)
        return all(position == end for position, end in offsets.values())

    await until(is_read, f"{service.name} to commit the end of each partition of {topic}")


async def assert_parked(db: asyncpg.Pool, service: str, topic: str, expected: dict) -> None:
    rows = {
        (topic, row["partition"], row["offset"]): row
        for row in await db.fetch(PARKED.format(service=service), topic)
    }
    assert {
        location: rows[location]["reason"] if location in rows else None for location in expected
    } == expected
    assert max(row["kept"] or 0 for row in rows.values()) <= 64 * 1024


@pytest.fixture
async def written(stack: Stack) -> AsyncIterator[tuple[Batches, list[str]]]:
    """In each partition good records around hostile ones, while nobody reads; the ids of the good ones."""
    await pipeline.migrated(stack, "tracker")
    good: list[str] = []
    async with Source(stack) as source, writer(stack, "provisioner") as producer:
        batches = Batches(stack, producer)

        def facts(number: int) -> list[dict]:
            records = [source.message(new_key()) for _ in range(number)]
            good.extend(map(id_of, records))
            return records

        for turn, name in enumerate([*READABLE, *HOSTILE, *SPOIL]):
            bad, fine = Partition(NODE_EVENTS, turn % 3), Partition(NODE_EVENTS, (turn + 1) % 3)
            await batches.send(fine, READABLE["snappy"](facts(2)))
            if name in READABLE:
                await batches.send(bad, READABLE[name](facts(3)))
            elif name in HOSTILE:
                await batches.hostile(bad, name, [source.message(new_key())])
            else:
                await batches.on_disk(bad, name, [source.message(new_key()) for _ in range(3)])
            await batches.send(bad, READABLE["lz4"](facts(2)))
        yield batches, good


async def test_a_service_and_the_operators_tools_pass_every_batch(
    stack: Stack,
    written: tuple[Batches, list[str]],
    db: asyncpg.Pool,
    monkeypatch: pytest.MonkeyPatch,
):
    batches, good = written
    for name, value in stack.service_env("tracker").items():
        monkeypatch.setenv(name, value)
    service = pipeline.build("tracker")
    async with service.running():
        await until_read(service, NODE_EVENTS)
    await assert_parked(db, "tracker", NODE_EVENTS, batches.expected)
    assert {row["event_id"] for row in await db.fetch(APPLIED.format(service="tracker"), good)} == set(good)
    login = Login(stack.kafka_bootstrap, "admin", stack.kafka_password("admin"))
    async with TopicReader(login, [NODE_EVENTS]) as reader:
        seen = [each.record async for each in reader.to_the_end()]
    assert await _missing(login, seen) == []
    note("poison batches", parked=len(batches.expected), good=len(good), read=len(seen))


async def _missing(login: Login, seen: list[Record]) -> list[Partition]:
    """Partitions of which a reader did not get every offset, in order, or not the same twice."""
    async with PartitionReader(login) as reader:
        partitions = await reader.partitions(NODE_EVENTS.__eq__)
        ranges = await reader.ranges(partitions)
        reader.assign({partition: there.start for partition, there in ranges.items()})
        again: list[Record] = []
        while len(again) < len(seen):
            again += await reader.fetch(max_records=7)
    missing = []
    for partition, there in ranges.items():
        first, second = (
            [r for r in records if (r.topic, r.partition) == partition] for records in (seen, again)
        )
        links = [extend(begin(partition, at=there.start), records).link for records in (first, second)]
        if [record.offset for record in first] != list(there) or links[0] != links[1]:
            missing.append(partition)
    return missing


async def test_the_gateway_passes_every_batch_of_a_tenant(
    stack: Stack, db: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
):
    await pipeline.migrated(stack, "gateway")
    topic = tenant_commands(TENANT)
    commands = []

    def command() -> dict:
        record = record_of(topic, sample(CancelJob))
        commands.append(dict(record.headers)["ce_id"].decode())
        return {"key": record.key, "value": record.value, "headers": list(record.headers)}

    async with writer(stack, f"tenant-{TENANT}") as producer:
        batches = Batches(stack, producer)
        for name in [name for name in HOSTILE if name != "lone_surrogate"]:
            await batches.send(Partition(topic.name, 0), READABLE["zstd"]([command()]))
            await batches.hostile(Partition(topic.name, 1), name, [{"key": b"k", "headers": []}])
            await batches.send(Partition(topic.name, 1), READABLE["gzip"]([command()]))
        await batches.on_disk(Partition(topic.name, 2), "damaged", [{}])
        await batches.send(Partition(topic.name, 2), READABLE["lz4"]([command()]))
        await batches.send(Partition(topic.name, 2), READABLE["lz4"]([_too_large(command())]))
    for name, value in stack.service_env("gateway").items():
        monkeypatch.setenv(name, value)
    settings = GatewaySettings()
    service = Service("gateway", settings)
    handlers.register(service, settings.quotas)
    async with service.running():
        await until_read(service, topic.name)
        refused = await service.database.fetch(
            "SELECT headers ->> 'ce_causationid' AS command, value FROM outbox WHERE type = 'CommandRefused'"
        )
    await assert_parked(db, "gateway", topic.name, batches.expected)
    answers = {row["command"]: row["value"] for row in refused}
    assert set(commands) <= set(answers)
    assert b'"code":"too_large"' in answers[commands[-1]]
    note("poison batches of a tenant", parked=len(batches.expected), answered=len(answers))


def _too_large(record: dict) -> dict:
    return record | {"value": record["value"][:-1] + b', "x": "' + b"x" * 64 * 1024 + b'"}'}
