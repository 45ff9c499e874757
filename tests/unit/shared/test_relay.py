"""What ends a relay, and what does not."""

import asyncio
from typing import Any

from aiokafka.errors import KafkaConnectionError

from shared.messaging import relay
from shared.messaging.relay import Relay
from tests.waiting import PATIENCE_SECONDS


class Producer:
    """One of several: the first cannot start, though Kafka has answered a moment before."""

    made = 0
    started = asyncio.Event()

    def __init__(self) -> None:
        Producer.made += 1
        self.number = Producer.made

    async def start(self) -> None:
        if self.number == 1:
            raise KafkaConnectionError("Unable to bootstrap")
        Producer.started.set()

    async def stop(self) -> None: ...


class Nobody:
    """A lease that another process holds."""

    token = None

    async def hold(self) -> None: ...


async def test_a_line_that_is_cut_before_its_producer_has_started_ends_no_process(monkeypatch):
    monkeypatch.setattr(relay, "POLL_SECONDS", 0.0)
    parts: Any = (None, Producer, Nobody())
    running = asyncio.create_task(Relay(*parts, service="tracker", renew_seconds=0.01).run())
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.wait(
            {running, asyncio.create_task(Producer.started.wait())}, return_when=asyncio.FIRST_COMPLETED
        )
    assert not running.done()
    assert Producer.made == 2
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
