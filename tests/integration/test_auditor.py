"""The auditor on the real parts: killed, set back, shut out from what it has no right to; its chain continues."""

import asyncio
import hashlib
import stat
from collections.abc import AsyncIterator

import asyncpg
import pytest
from aiokafka.errors import KafkaError
from botocore.exceptions import ClientError

from deploy.bootstrap.site import KAFKA_SUPER_USER
from deploy.local.stack import Stack
from schemas import layout
from schemas.audit import NOTHING_BEFORE
from services.auditor import decide, store
from services.auditor.handlers import Reading
from services.auditor.settings import Settings
from shared.audit import heads
from shared.audit.chain import begin
from shared.clock import utc_now
from shared.messaging import lag
from shared.messaging.kafka import kafka_producer
from shared.messaging.kafka_health import ClientUnresponsive
from shared.messaging.login import Login
from shared.messaging.partitions import PartitionReader
from shared.partition import Partition
from shared.postgres.migrate import migrate
from shared.record import Record
from shared.service import Service
from shared.storage.s3 import S3ObjectStore
from tests.chaos.hostile_batches import Batches, writer
from tests.integration.auditing import Audited, record
from tests.integration.scratch import empty_schema
from tests.waiting import until

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
async def audited(stack: Stack) -> AsyncIterator[Audited]:
    async with Audited.on(stack) as audited:
        yield audited


async def verified(audited: Audited, topic: str) -> int:
    """How many records of the topic are what they were."""
    examined = await audited.examine(topic)
    assert examined.findings == []
    return sum(count.records for count in examined.counts)


async def test_a_killed_auditor_continues_where_it_was(audited: Audited):
    topic = await audited.new_topic()
    for life in range(3):
        await audited.write(topic, (record(20 * life + number) for number in range(20)))
        await audited.stack.kill("auditor")
        await audited.stack.wait_healthy("auditor")
    await audited.signed({topic: 60})
    await audited.write(topic, [record(60)])
    await audited.signed({topic: 61})
    assert await verified(audited, topic) == 61
    statements = await audited.statements()
    assert [statement.number for _, statement in statements] == list(range(1, len(statements) + 1))
    before, known = NOTHING_BEFORE, heads.after([])
    assert {statement.is_full for _, statement in statements} == {True, False}
    for key, statement in statements:
        known = heads.moved_on(known, statement)
        assert (statement.previous_sha256, heads.agrees(known, statement)) == (before, True)
        before = hashlib.sha256(await audited.objects.get_bytes(key)).hexdigest()


async def test_batches_that_cannot_be_read_are_part_of_the_chain(audited: Audited):
    topic = await audited.new_topic()
    await audited.write(topic, map(record, range(3)))
    async with writer(audited.stack, KAFKA_SUPER_USER) as producer:
        batches = Batches(audited.stack, producer)
        for name in ("gzip_bomb", "zstd_bomb", "huge_headers"):
            await batches.hostile(Partition(topic, 0), name, [{"headers": []}])
        await batches.on_disk(Partition(topic, 0), "damaged", [{}, {}])
    await audited.write(topic, map(record, range(3, 5)))
    end = 3 + len(batches.expected) + 2
    await audited.signed({topic: end})
    assert await verified(audited, topic) == end


async def test_a_partition_beside_one_that_cannot_be_read_is_read_whole(audited: Audited):
    """Both lie there when it starts, so they come in the same fetch."""
    good, bad = await audited.new_topic(), await audited.new_topic()
    await audited.signed({good: 0, bad: 0})
    await audited.stack.stop("auditor")
    await audited.write(good, map(record, range(5)))
    async with writer(audited.stack, KAFKA_SUPER_USER) as producer:
        batches = Batches(audited.stack, producer)
        await batches.hostile(Partition(bad, 0), "zstd_bomb", [{"headers": []}])
    await audited.write(bad, map(record, range(5, 7)))
    await audited.start()
    ends = {good: 5, bad: len(batches.expected) + 2}
    await audited.signed(ends)
    assert [await verified(audited, topic) for topic in (good, bad)] == list(ends.values())


@pytest.mark.parametrize("is_running", [False, True])
async def test_it_continues_from_the_newest_statement_where_postgres_was_set_back(
    audited: Audited, is_running: bool
):
    topic = await audited.new_topic()
    await audited.write(topic, map(record, range(10)))
    number = await audited.signed({topic: 10})
    if not is_running:
        await audited.stack.stop("auditor")
    await audited.postgres("DELETE FROM chain", "DELETE FROM statement")
    if not is_running:
        await audited.start()
    await audited.write(topic, map(record, range(10, 15)))
    assert await audited.signed({topic: 15}) > number
    assert await verified(audited, topic) == 15


async def test_it_does_not_continue_from_what_another_key_signed(audited: Audited):
    key = audited.stack.state.root / "auditor" / "signing.pem"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    await audited.stack.stop("auditor")
    await audited.postgres("DELETE FROM statement")
    kept = key.read_bytes()
    key.unlink()
    await audited.stack.start("auditor")

    async def has_refused() -> bool:
        return "found the key" in audited.stack.log("auditor").read_text()

    await until(has_refused, "the auditor's refusal in its log")
    await audited.stack.stop("auditor")
    key.write_bytes(kept)
    await audited.start()


async def test_a_log_that_ends_before_what_was_read_is_reported_and_not_forgotten(audited: Audited):
    topic = await audited.new_topic()
    await audited.write(topic, map(record, range(10)))
    await audited.signed({topic: 10})
    await audited.make_again({topic: map(record, range(5))})

    async def ill() -> bool:
        return "the log ends before what was read" in audited.stack.log("auditor").read_text()

    await until(ill, "the loss in the auditor's log")
    connection = await asyncpg.connect(audited.stack.postgres_dsn("auditor"))
    assert await connection.fetchval("SELECT next_offset FROM chain WHERE topic = $1", topic) == 10
    await connection.close()
    (finding,) = (await audited.examine(topic)).findings
    assert (finding.what, finding.partition, finding.offsets) == ("truncated", (topic, 0), range(5, 10))
    await audited.write(topic, map(record, range(5, 12)))
    await audited.signed({topic: 12})


async def test_a_chain_that_begins_while_a_statement_is_made_is_named_by_the_next_one(stack: Stack):
    first, second = (begin(Partition("topic", number), at=0) for number in range(2))
    async with empty_schema(stack) as dsn:
        await migrate("auditor", dsn)
        signing, reading = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
        await store.begin_chains(reading, [first])
        async with signing.transaction():
            chains = await store.lock_chains(signing)
            await store.begin_chains(reading, [second])
            one = decide.state(
                decide.Last(), chains, await store.moved_topic_partitions(signing), now=utc_now()
            )
            await store.mark_signed(signing, one.partitions)
        async with signing.transaction():
            chains, moved = await store.lock_chains(signing), await store.moved_topic_partitions(signing)
            two = decide.state(decide.Last(1), chains, moved, now=utc_now())
        await signing.close()
        await reading.close()
    assert [[read.partition for read in each.partitions] for each in (one, two)] == [[0], [1]]
    assert heads.agrees(heads.after([one, two]), two)


async def test_it_may_write_no_topic_and_delete_no_object(audited: Audited):
    stack = audited.stack
    password = stack.kafka_password("auditor")
    producer = kafka_producer(stack.kafka_bootstrap, "auditor", password, client_id="test")
    try:
        with pytest.raises(KafkaError, match="Authorization"):
            await producer.start()
    finally:
        await producer.stop()
    own = stack.s3_credentials("auditor")
    objects = S3ObjectStore(stack.s3_endpoint, own.access_key, own.secret_key, bucket=stack.s3_bucket)
    key = (await audited.statements())[0][0]
    assert await objects.get_bytes(key)
    with pytest.raises(ClientError, match="AccessDenied"):
        objects._client.delete_object(Bucket=stack.s3_bucket, Key=key)
    with pytest.raises(ClientError, match="AccessDenied"):
        objects._client.get_object(Bucket=stack.s3_bucket, Key=layout.blob("0" * 64))


async def test_a_reader_that_hands_over_nothing_ends_the_process(audited: Audited, monkeypatch):
    class Deaf(PartitionReader):
        async def fetch(self, *, max_records: int | None = None) -> list[Record]:
            await asyncio.sleep(0)
            return []

    await audited.stack.stop("auditor")
    await audited.write(await audited.new_topic(), map(record, range(3)))
    for name, value in audited.stack.service_env("auditor").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(lag, "STALLED_AFTER_SECONDS", 0.2)
    settings = Settings()
    service = Service("auditor", settings)
    await service.database.open()
    async with Deaf(Login.of(settings)) as reader:
        reading = Reading(service, reader, look_seconds=0.0)

        async def read_for_ever() -> None:
            while True:
                await reading.read_on()

        with pytest.raises(ClientUnresponsive, match="hands over none"):
            await asyncio.wait_for(read_for_ever(), 30)
    await service.database.close()
    await audited.start()
