"""The runner's only door to Kafka: reports and metrics out, the directives of its job in.

A runner is no service: it has no outbox, but a journal, and it belongs to no consumer group.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.partitioner import DefaultPartitioner

from schemas.base import Message
from schemas.envelope import Envelope, MalformedEnvelope, from_headers, to_headers
from schemas.topics import AGENT_DIRECTIVES, message_type, topic_of
from schemas.training import StartTraining, StopTraining
from schemas.upcasters import upcast
from services.trainer_agent.runner.settings import Settings
from shared.log import get_logger
from shared.messaging.aiokafka_patches import patch_closing_over_tls
from shared.signatures import PrivateKey
from shared.tls import client_context

log = get_logger(__name__)

patch_closing_over_tls()

Directive = StartTraining | StopTraining

WRITER = "runner"
POLL_MILLISECONDS = 200
CONNECT_TIMEOUT_MILLISECONDS = 10_000


class NotAcknowledged(Exception):
    """The broker did not confirm that it has the message; it may have it all the same."""


class Channel:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._key = settings.job_id.encode()
        self._private_key = PrivateKey(settings.node_key_file.read_text().strip())
        context = client_context(settings.tls.ca_file)
        self._client: dict[str, Any] = {
            "bootstrap_servers": settings.kafka_bootstrap,
            "security_protocol": "SASL_SSL" if context else "SASL_PLAINTEXT",
            "ssl_context": context,
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_plain_username": settings.kafka_username,
            "sasl_plain_password": settings.kafka_password.get_secret_value(),
            "client_id": settings.node_id,
            "request_timeout_ms": CONNECT_TIMEOUT_MILLISECONDS,
        }
        self._producer: AIOKafkaProducer | None = None
        self._consumer: AIOKafkaConsumer | None = None
        self._creating = asyncio.Lock()
        self._cause: Envelope | None = None
        """Envelope of the newest directive: reports belong to the same event stream and trace."""

    async def open(self) -> None:
        self._consumer = AIOKafkaConsumer(
            group_id=None, enable_auto_commit=False, auto_offset_reset="earliest", **self._client
        )
        await self._consumer.start()
        await self._current_producer()

    async def close(self) -> None:
        if self._consumer is not None:
            await self._consumer.stop()
        if self._producer is not None:
            await self._producer.stop()

    async def end_of_directives(self) -> int:
        """Return where the job's partition of the directives ends now."""
        partition = await self._partition()
        ends = await self._opened.end_offsets([partition])
        return int(ends[partition])

    async def directives(self, *, offset: int) -> AsyncIterator[tuple[Directive, datetime]]:
        """Yield directives to this attempt and when each was written, without end, from `offset` of the partition."""
        partition = await self._partition()
        self._opened.assign([partition])
        self._opened.seek(partition, offset)
        while True:
            batches = await self._opened.getmany(partition, timeout_ms=POLL_MILLISECONDS)
            for record in batches.get(partition, ()):
                if record.key == self._key and (directive := self._read(record)):
                    yield directive

    async def send(self, message: Message, *, event_id: str, time: datetime) -> None:
        """Send a message, and return once the broker has acknowledged it. Raises NotAcknowledged."""
        topic = topic_of(type(message), writer=WRITER).name
        headers = to_headers(self._envelope(message, event_id, time))
        value = message.model_dump_json().encode()
        headers = self._private_key.signed(headers, topic=topic, key=self._key, value=value)
        try:
            producer = await self._current_producer()
        except KafkaError as error:
            raise _not_acknowledged(message, error) from error
        try:
            await producer.send_and_wait(topic, value=value, key=self._key, headers=headers)
        except KafkaError as error:
            await self._drop(producer)
            raise _not_acknowledged(message, error) from error

    async def _current_producer(self) -> AIOKafkaProducer:
        async with self._creating:
            if self._producer is None:
                producer = AIOKafkaProducer(enable_idempotence=True, linger_ms=2, **self._client)
                try:
                    await producer.start()
                except KafkaError:
                    await producer.stop()
                    raise
                self._producer = producer
            return self._producer

    async def _drop(self, producer: AIOKafkaProducer) -> None:
        """Stop a producer after an error, when it may refuse everything: the next send begins with a new one."""
        if self._producer is producer:
            self._producer = None
        await producer.stop()

    @property
    def _opened(self) -> AIOKafkaConsumer:
        assert self._consumer is not None, "the channel is used before open()"
        return self._consumer

    async def _partition(self) -> TopicPartition:
        """Return the partition that a keyed producer chooses for the job."""
        topic = AGENT_DIRECTIVES.name
        numbers = sorted(self._opened.partitions_for_topic(topic) or await self._fetch_partitions(topic))
        return TopicPartition(topic, DefaultPartitioner()(self._key, numbers, numbers))

    async def _fetch_partitions(self, topic: str) -> set[int]:
        # A consumer without a subscription knows no topics, and no public call asks for a topic's metadata.
        metadata = await self._opened._client.fetch_all_metadata()  # noqa: SLF001
        partitions: set[int] | None = metadata.partitions_for_topic(topic)
        if not partitions:
            raise KafkaError(
                f"topic {topic} is not there, or user {self._settings.kafka_username} may not read it"
            )
        return partitions

    def _read(self, record: Any) -> tuple[Directive, datetime] | None:
        """Return a directive; None for one to another attempt, and for what is no directive, which is logged."""
        try:
            envelope = from_headers(record.headers, key=record.key)
            kind = message_type(AGENT_DIRECTIVES, envelope.type)
            if kind is None or envelope.version > kind.version:
                raise MalformedEnvelope(f"{AGENT_DIRECTIVES.name} carries no {envelope.ce_type}")
            payload = upcast(envelope.type, envelope.version, json.loads(record.value), to=kind.version)
            directive = kind.model_validate(payload)
        except (ValueError, TypeError, KeyError) as error:
            log.warning("directive not understood", offset=record.offset, error=str(error))
            return None
        assert isinstance(directive, StartTraining | StopTraining)
        if directive.attempt != self._settings.attempt:
            return None
        self._cause = envelope
        return directive, envelope.time

    def _envelope(self, message: Message, event_id: str, time: datetime) -> Envelope:
        """Return the envelope of a report, in the event stream and the trace of the newest directive."""
        cause = self._cause
        return Envelope(
            id=event_id,
            type=message.type,
            version=message.version,
            source=f"/retune/runner/{self._settings.node_id}",
            time=time,
            key=message.key,
            correlation_id=(cause.correlation_id if cause else "") or event_id,
            causation_id=cause.id if cause else "",
            traceparent=cause.traceparent if cause else "",
        )


def _not_acknowledged(message: Message, error: KafkaError) -> NotAcknowledged:
    log.warning("report not acknowledged", type=message.type, error=f"{type(error).__name__}: {error}")
    return NotAcknowledged(str(error))
