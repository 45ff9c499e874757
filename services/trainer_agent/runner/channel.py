"""The runner's only door to Kafka: reports and metrics out. It reads nothing there.

A runner is no service: it has no outbox, but a journal.
"""

import asyncio
from datetime import datetime
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from schemas.base import Message
from schemas.envelope import Envelope, Origin, to_headers
from schemas.topics import topic_of
from services.trainer_agent.runner.settings import Settings
from shared.log import get_logger
from shared.messaging.aiokafka_patches import patch_closing_over_tls
from shared.signatures import PrivateKey
from shared.tls import client_context

log = get_logger(__name__)

patch_closing_over_tls()

WRITER = "runner"
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
        self._creating = asyncio.Lock()
        self.origin: Origin | None = None
        """Of the attempt, once a directive has said it: reports belong to the same request and trace."""

    async def open(self) -> None:
        await self._current_producer()

    async def close(self) -> None:
        if self._producer is not None:
            await self._producer.stop()

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

    def _envelope(self, message: Message, event_id: str, time: datetime) -> Envelope:
        origin = self.origin
        return Envelope(
            id=event_id,
            type=message.type,
            version=message.version,
            source=f"/retune/runner/{self._settings.node_id}",
            time=time,
            key=message.key,
            correlation_id=(origin.correlation_id if origin else "") or event_id,
            traceparent=origin.traceparent if origin else "",
        )


def _not_acknowledged(message: Message, error: KafkaError) -> NotAcknowledged:
    log.warning("report not acknowledged", type=message.type, error=f"{type(error).__name__}: {error}")
    return NotAcknowledged(str(error))
