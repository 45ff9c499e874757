"""Writes records to topics as their writer would and as nobody should, and remembers the good ones."""

import asyncio
from collections import defaultdict
from typing import Any
from uuid import uuid4

from deploy.local.stack import Stack
from schemas.envelope import Envelope, to_headers
from schemas.training import StepsRecorded
from shared.clock import utc_now
from tests.integration.kernel.conftest import NODE_EVENTS, Writer


class Source(Writer):
    """Records of one topic, spread over its partitions by their key; facts of the provisioner unless told otherwise."""

    def __init__(self, stack: Stack, user: str = "provisioner", topic: str = NODE_EVENTS) -> None:
        super().__init__(stack, user)
        self._topic = topic
        self.sent: dict[str, list[str]] = defaultdict(list)
        """Event ids per aggregate, each once, in order."""

    async def raw(self, *, key: bytes | None, value: bytes | None, headers: list) -> Any:
        return await self._producer.send_and_wait(self._topic, value=value, key=key, headers=headers)

    async def good(self, key: str, **changed: Any) -> str:
        event_id = await super().good(key, **changed)
        self.sent[key].append(event_id)
        return event_id

    async def send(self, record: dict[str, Any]) -> asyncio.Future[Any]:
        """What it returns is awaited for the place in the log."""
        return await self._producer.send(self._topic, **record)

    async def all(self, records: list[dict[str, Any]]) -> None:
        """Send in this order, without waiting for one before the next."""
        await asyncio.gather(*[await self.send(record) for record in records])

    def fact(self, key: str) -> dict[str, Any]:
        """A good record that its caller sends."""
        record = self.message(key)
        self.sent[key].append(id_of(record))
        return record


def id_of(record: dict[str, Any]) -> str:
    return dict(record["headers"])["ce_id"].decode()


def a_batch(job_id: str) -> dict[str, Any]:
    """A record of run.metrics, whose messages have no numbers."""
    message = StepsRecorded(job_id=job_id, tenant="acme", attempt=1, steps=())
    envelope = Envelope(
        id=uuid4().hex,
        type=message.type,
        version=message.version,
        source="/retune/runner",
        time=utc_now(),
        key=message.key,
    )
    return {
        "key": job_id.encode(),
        "value": message.model_dump_json().encode(),
        "headers": to_headers(envelope),
    }
