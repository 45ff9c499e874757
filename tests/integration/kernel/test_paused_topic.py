"""A tenant's topic that has brought more than is read of one in a day, with Kafka's own client on a real broker."""

import pytest

from deploy.local.stack import Stack
from shared.messaging.kafka import kafka_producer
from shared.messaging.login import Login
from shared.messaging.partitions import Partition, PartitionReader
from shared.messaging.turns import DAY_SECONDS, TenantLimit, Turns
from tests.waiting import until

pytestmark = pytest.mark.stack

TENANT, OTHER = (f"tenant.{name}.commands" for name in ("demo", "other"))
RECORDS, FEW = 300, 50
A_DAY = 100
"""Records that are read at once, and in each day after that."""


async def test_is_read_no_further_and_later_without_a_gap(stack: Stack):
    seconds = 0.0
    login = Login(stack.kafka_bootstrap, "admin", stack.kafka_password("admin"))
    async with PartitionReader(login) as reader:
        partitions = await reader.partitions(lambda topic: topic in (TENANT, OTHER))
        begins = {partition: ends.stop for partition, ends in (await reader.ranges(partitions)).items()}
        await send(stack, TENANT, RECORDS)
        await send(stack, OTHER, FEW)
        reader.assign(begins)
        limit = TenantLimit(A_DAY, clock=lambda: seconds)
        reader._turns = Turns(reader._consumer, limit=limit)
        read: dict[str, list[tuple[Partition, int]]] = {TENANT: [], OTHER: []}

        async def has_read(topic: str, number: int) -> bool:
            for record in await reader.fetch(max_records=20):
                read[record.topic].append((Partition(record.topic, record.partition), record.offset))
            return len(read[topic]) >= number

        await until(lambda: has_read(TENANT, A_DAY), "what is read at once")
        paused = len(read[TENANT])
        for _ in range(5):
            await has_read(TENANT, A_DAY)
        assert len(read[TENANT]) == paused < A_DAY + 20
        assert {partition.topic for partition in limit.paused} == {TENANT}
        assert len(read[OTHER]) == FEW
        for _ in range(RECORDS // A_DAY):
            seconds += DAY_SECONDS
            expected = min(RECORDS, len(read[TENANT]) + A_DAY - 20)
            await until(lambda expected=expected: has_read(TENANT, expected), "what is read in the next day")
    first = begins[read[TENANT][0][0]]
    assert [offset for _, offset in read[TENANT]] == list(range(first, first + RECORDS))


async def send(stack: Stack, topic: str, number: int) -> None:
    """All with one key, in batches of a few records."""
    user = f"tenant-{topic.split('.')[1]}"
    password = stack.kafka_password(user)
    async with kafka_producer(stack.kafka_bootstrap, user, password, client_id="sender") as producer:
        for _ in range(number // 10):
            sent = [await producer.send(topic, b"{}", key=b"one") for _ in range(10)]
            for each in sent:
                await each
