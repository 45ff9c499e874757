"""Reading of topics outside any group, for the command line, the demo and tests. It commits nothing."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from uuid import uuid4

from aiokafka import AIOKafkaProducer

from schemas.base import Message
from schemas.envelope import Envelope, to_headers
from schemas.topics import topic_of
from shared.clock import utc_now
from shared.messaging.delivery import Delivery, Unreadable, read, topic_named
from shared.messaging.kafka import kafka_producer
from shared.messaging.kafka_health import started
from shared.messaging.login import Login
from shared.messaging.partitions import READING_MS, PartitionReader
from shared.messaging.unit import require_size
from shared.partition import Partition
from shared.record import Record

Resend = Callable[[Record], Awaitable[None]]

SEND_SECONDS = 30.0


class TopicReader:
    """A reader of whole topics by their own offsets, for `async with TopicReader(login, names) as reader`."""

    def __init__(self, login: Login, topics: Iterable[str], *, from_end: bool = False) -> None:
        self._topics = frozenset(topics)
        self._from_end = from_end
        self._reader = PartitionReader(login, idle_ms=READING_MS)
        self._partitions: list[Partition] = []

    async def __aenter__(self) -> "TopicReader":
        await self._reader.open()
        try:
            self._partitions = await self._reader.partitions(self._topics.__contains__)
            ranges = await self._reader.ranges(self._partitions)
        except BaseException:
            await self._reader.close()
            raise
        self._reader.assign(
            {
                partition: offsets.stop if self._from_end else offsets.start
                for partition, offsets in ranges.items()
            }
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._reader.close()

    async def to_the_end(self) -> AsyncIterator[Delivery | Unreadable]:
        """Yield all records up to the ends that the topics have now, oldest record time first within a fetch."""
        ranges = await self._reader.ranges(self._partitions)
        while not await self._reached({partition: offsets.stop for partition, offsets in ranges.items()}):
            for delivery in await self._fetch():
                yield delivery

    async def follow(self) -> AsyncIterator[Delivery | Unreadable]:
        """Yield all records from the current position on, without end."""
        while True:
            for delivery in await self._fetch():
                yield delivery

    async def _fetch(self) -> list[Delivery | Unreadable]:
        records = await self._reader.fetch()
        return [read(record) for record in _by_time(records)]

    async def _reached(self, ends: Mapping[Partition, int]) -> bool:
        return all([await self._reader.position(partition) >= end for partition, end in ends.items()])


def _by_time(records: Iterable[Record]) -> list[Record]:
    """Sort oldest first; records of a partition keep their order, whatever time their producers gave them."""
    latest: dict[Partition, int] = {}
    times = []
    for record in records:
        partition = Partition(record.topic, record.partition)
        latest[partition] = max(record.timestamp_ms, latest.get(partition, record.timestamp_ms))
        times.append((latest[partition], record))
    return [record for _, record in sorted(times, key=lambda each: each[0])]


@asynccontextmanager
async def resending(login: Login, topic: str) -> AsyncIterator[Resend]:
    """Provide a function that sends records to a topic again unchanged, with their ids."""

    async def resend(record: Record) -> None:
        # The record's key chooses its partition; its time is now, so that retention starts again.
        async with asyncio.timeout(SEND_SECONDS):
            await producer.send_and_wait(
                topic, value=record.value, key=record.key, headers=list(record.headers)
            )

    async with started(_producer(login, client_id=login.username)) as producer:
        yield resend


async def send(login: Login, command: Message, *, writer: str, topic: str | None = None) -> str:
    """Send one message to its topic as `writer`, without an outbox, and return its event id. Raises TooLarge."""
    event_id = uuid4().hex
    envelope = Envelope(
        id=event_id,
        type=command.type,
        version=command.version,
        source=f"/retune/{writer}",
        time=utc_now(),
        key=command.key,
        correlation_id=event_id,
    )
    to = topic_named(topic) if topic else topic_of(type(command), writer=writer)
    value, headers = command.model_dump_json().encode(), to_headers(envelope)
    require_size(to, command.type, {name: text.decode() for name, text in headers}, value)
    async with started(_producer(login, client_id=writer)) as producer, asyncio.timeout(SEND_SECONDS):
        await producer.send_and_wait(to.name, value=value, key=command.key.encode(), headers=headers)
    return event_id


def _producer(login: Login, *, client_id: str) -> AIOKafkaProducer:
    return kafka_producer(
        login.bootstrap,
        login.username,
        login.password,
        client_id=client_id,
        ca_file=login.ca_file,
    )
