"""Speaking on the topics as the services do, each with its own Kafka user, and hearing what is said there."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import uuid4

from aiokafka import AIOKafkaProducer

from deploy.local.stack import Stack
from schemas.base import Message
from schemas.envelope import Envelope, to_headers
from schemas.topics import topic_of
from shared.clock import utc_now
from shared.messaging.delivery import Delivery
from shared.messaging.kafka import kafka_producer
from shared.messaging.login import Login
from shared.messaging.reader import TopicReader
from shared.record import Record
from shared.signatures import PrivateKey
from tests.waiting import PATIENCE_SECONDS


class Voices:
    """`say` a message as its writer; stories are numbered as the kernel would."""

    def __init__(self, stack: Stack, closing: AsyncExitStack) -> None:
        self._stack = stack
        self._closing = closing
        self._producers: dict[str, AIOKafkaProducer] = {}
        self._opening = asyncio.Lock()
        self._sequences: dict[tuple[str, str], int] = defaultdict(int)

    async def say(
        self,
        writer: str,
        *messages: Message,
        event_id: str = "",
        causation_id: str = "",
        signer: PrivateKey | None = None,
    ) -> str:
        """The id of the last event. `signer`: who signs them, as a node does."""
        last = ""
        for message in messages:
            record = self.record(writer, message, event_id=event_id, causation_id=causation_id, signer=signer)
            await self.send(writer, record)
            last = dict(record.headers)["ce_id"].decode()
        return last

    def record(
        self,
        writer: str,
        message: Message,
        *,
        event_id: str = "",
        causation_id: str = "",
        signer: PrivateKey | None = None,
    ) -> Record:
        """The record that says it, with the next number of its event stream."""
        topic = topic_of(type(message), writer=writer)
        if topic.is_event_stream and not event_id:
            self._sequences[topic.name, message.key] += 1
        envelope = Envelope(
            id=event_id or uuid4().hex,
            type=message.type,
            version=message.version,
            source=f"/retune/{writer}",
            time=utc_now(),
            key=message.key,
            causation_id=causation_id,
            sequence=self._sequences[topic.name, message.key] if topic.is_event_stream else None,
        )
        headers, key, value = to_headers(envelope), message.key.encode(), message.model_dump_json().encode()
        if signer is not None:
            headers = signer.signed(headers, topic=topic.name, key=key, value=value)
        return Record(topic.name, -1, -1, key, tuple(headers), value)

    async def send(self, writer: str, record: Record) -> None:
        producer = await self._producer(writer)
        await producer.send_and_wait(
            record.topic, value=record.value, key=record.key, headers=list(record.headers)
        )

    async def _producer(self, writer: str) -> AIOKafkaProducer:
        async with self._opening:
            if writer not in self._producers:
                password = self._stack.kafka_password(writer)
                client = kafka_producer(
                    self._stack.kafka_bootstrap, writer, password, client_id=f"voice-{writer}"
                )
                self._producers[writer] = await self._closing.enter_async_context(client)
        return self._producers[writer]


class Ear:
    """Everything said on some topics, by key, and each event once: a relay that was killed may send it again."""

    def __init__(self) -> None:
        self.heard: dict[str, list[Delivery]] = defaultdict(list)
        self._ids: set[str] = set()
        self._news = asyncio.Condition()

    async def listen(self, reader: TopicReader) -> None:
        async for delivery in reader.follow():
            assert isinstance(delivery, Delivery), f"unreadable: {delivery}"
            if delivery.envelope.id in self._ids:
                continue
            self._ids.add(delivery.envelope.id)
            async with self._news:
                self.heard[delivery.envelope.key].append(delivery)
                self._news.notify_all()

    def types(self, key: str) -> list[str]:
        return [each.message.type for each in self.heard[key]]

    def last(self, key: str) -> Any:
        return self.heard[key][-1].message

    async def until(self, key: str, *types: str, seconds: float = PATIENCE_SECONDS) -> Any:
        """The last message of this story, once it is exactly of these types."""
        expected = list(types)
        try:
            async with asyncio.timeout(seconds), self._news:
                await self._news.wait_for(lambda: self.types(key) == expected)
        except TimeoutError as error:
            raise AssertionError(f"{key}: heard {self.types(key)}, waited for {expected}") from error
        return self.last(key)

    async def until_any(self, key: str, *names: str) -> Any:
        """The newest message of these types, once there is one."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS), self._news:
                await self._news.wait_for(lambda: not set(names).isdisjoint(self.types(key)))
        except TimeoutError as error:
            raise AssertionError(f"{key}: heard {self.types(key)}, waited for one of {names}") from error
        return next(each.message for each in reversed(self.heard[key]) if each.message.type in names)


@asynccontextmanager
async def voices(stack: Stack) -> AsyncIterator[Voices]:
    async with AsyncExitStack() as closing:
        yield Voices(stack, closing)


@asynccontextmanager
async def ear(stack: Stack, *topics: str) -> AsyncIterator[Ear]:
    login = Login(stack.kafka_bootstrap, "admin", stack.kafka_password("admin"))
    heard = Ear()
    async with TopicReader(login, topics, from_end=True) as reader:
        listening = asyncio.create_task(heard.listen(reader))
        try:
            yield heard
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
