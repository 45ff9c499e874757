"""Reading topics from outside any group: for the command line, the demo and tests. Commits nothing."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from aiokafka import AIOKafkaConsumer, TopicPartition

from schemas.base import Message
from schemas.envelope import Envelope, to_headers
from schemas.topics import topic_of
from shared.clock import utc_now
from shared.messaging.delivery import Delivery, Record, Unreadable, read
from shared.messaging.kafka import kafka_producer, sasl

POLL_MILLISECONDS = 200


@dataclass(frozen=True)
class Login:
    bootstrap: str
    username: str
    password: str
    security_protocol: str = "SASL_PLAINTEXT"


class TopicReader:
    """Reads whole topics by their own offsets: `async with TopicReader(login, names) as reader`."""

    def __init__(self, login: Login, topics: Iterable[str], *, from_end: bool = False) -> None:
        self._login = login
        self._topics = list(topics)
        self._from_end = from_end
        self._consumer: Any = None

    async def __aenter__(self) -> "TopicReader":
        login = self._login
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=login.bootstrap,
            enable_auto_commit=False,
            isolation_level="read_committed",
            **sasl(login.username, login.password, security_protocol=login.security_protocol),
        )
        try:
            await self._consumer.start()
        except BaseException:
            await self._consumer.stop()
            raise
        partitions = await self._partitions()
        self._consumer.assign(partitions)
        if self._from_end:
            await self._consumer.seek_to_end(*partitions)
            for partition in partitions:  # fixes the place now, not at the first fetch
                await self._consumer.position(partition)
        else:
            await self._consumer.seek_to_beginning(*partitions)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._consumer.stop()

    async def seek_to_time(self, milliseconds: int) -> None:
        """Go to the first record of each partition at or after a time in milliseconds since 1970."""
        partitions = self._consumer.assignment()
        found = await self._consumer.offsets_for_times(dict.fromkeys(partitions, milliseconds))
        for partition, place in found.items():
            if place is None:
                await self._consumer.seek_to_end(partition)
            else:
                self._consumer.seek(partition, place.offset)

    async def to_the_end(self) -> AsyncIterator[Delivery | Unreadable]:
        """Everything up to the ends that the topics have now, oldest record time first within a fetch."""
        ends = await self._consumer.end_offsets(self._consumer.assignment())
        while not await self._reached(ends):
            for found in await self._fetch():
                yield found

    async def follow(self) -> AsyncIterator[Delivery | Unreadable]:
        """Everything from here on, for ever."""
        while True:
            for found in await self._fetch():
                yield found

    async def _fetch(self) -> list[Delivery | Unreadable]:
        batches = await self._consumer.getmany(timeout_ms=POLL_MILLISECONDS)
        raw = sorted((each for batch in batches.values() for each in batch), key=lambda each: each.timestamp)
        return [
            read(Record(each.topic, each.partition, each.offset, each.key, tuple(each.headers), each.value))
            for each in raw
        ]

    async def _reached(self, ends: dict[TopicPartition, int]) -> bool:
        positions = [(await self._consumer.position(partition), end) for partition, end in ends.items()]
        return all(position >= end for position, end in positions)

    async def _partitions(self) -> list[TopicPartition]:
        found = await self._consumer._client.fetch_all_metadata()  # noqa: SLF001  no public call fetches a topic's
        return [
            TopicPartition(topic, number)
            for topic in self._topics
            for number in sorted(found.partitions_for_topic(topic) or ())
        ]


async def send(login: Login, command: Message, *, writer: str, topic: str | None = None) -> str:
    """Put one message on its topic as `writer`, without an outbox; its event id."""
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
    producer = kafka_producer(
        login.bootstrap,
        login.username,
        login.password,
        client_id=writer,
        security_protocol=login.security_protocol,
    )
    name = topic or topic_of(type(command), writer=writer).name
    async with producer, asyncio.timeout(30):
        await producer.send_and_wait(
            name,
            value=command.model_dump_json().encode(),
            key=command.key.encode(),
            headers=to_headers(envelope),
        )
    return event_id
