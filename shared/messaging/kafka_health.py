"""Telling a Kafka that is away, for which one waits, from one that answers and does nothing for us."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

from aiokafka.conn import collect_hosts, create_conn
from aiokafka.errors import KafkaError
from aiokafka.protocol.metadata import MetadataRequest

from shared.log import get_logger
from shared.messaging.kafka import sasl
from shared.settings import ServiceSettings

log = get_logger(__name__)

Result = TypeVar("Result")
Answers = Callable[[], Awaitable[bool]]
ANSWER_SECONDS = 5.0
POLL_SECONDS = 1.0
START_TIMEOUT_SECONDS = 30.0
CANCEL_SECONDS = 5.0
STOP_SECONDS = 5.0


class Client(Protocol):
    async def start(self) -> object: ...
    async def stop(self) -> object: ...


AnyClient = TypeVar("AnyClient", bound=Client)


class ClientUnresponsive(TimeoutError):
    """Kafka answers, and a client of ours does nothing. Nothing mends it but a new process."""


async def kafka_answers(settings: ServiceSettings) -> bool:
    """Whether a new connection to one of the brokers gets the metadata of the cluster."""
    login = sasl(
        settings.kafka_username,
        settings.kafka_password.get_secret_value(),
        security_protocol=settings.kafka_security_protocol,
    )
    for host, port, _ in collect_hosts(settings.kafka_bootstrap):
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await _ask_for_metadata(host, port, login)
        except (KafkaError, OSError, TimeoutError):
            continue
        return True
    return False


async def _ask_for_metadata(host: str, port: int, login: dict[str, Any]) -> None:
    """The client's own bootstrap leaves its connection open where it is cancelled."""
    connection = await create_conn(host, port, **login)
    try:
        await connection.send(MetadataRequest([]))
    finally:
        connection.close()


async def always_available() -> bool:
    return True


async def wait_until_available(answers: Answers) -> None:
    while not await answers():
        log.warning("kafka is away")
        await asyncio.sleep(POLL_SECONDS)


async def await_through_outage(work: Awaitable[Result], answers: Answers, *, seconds: float) -> Result:
    """What `work` gives. ClientUnresponsive where Kafka answers and the work still does not end for so long."""
    running = asyncio.ensure_future(work)
    has_answered = False
    try:
        while not (await asyncio.wait({running}, timeout=seconds))[0]:
            if has_answered:
                raise ClientUnresponsive(f"Kafka answers, but this did not end within {seconds:g} s")
            has_answered = await answers()
            log.warning("kafka takes its time", answers=has_answered)
        return running.result()
    finally:
        if not running.done():
            running.cancel()
            await asyncio.wait({running}, timeout=CANCEL_SECONDS)


@asynccontextmanager
async def started(client: AnyClient, answers: Answers = always_available) -> AsyncIterator[AnyClient]:
    """Its own `async with` leaves it open where it cannot start, and can wait for ever at both ends."""
    try:
        await await_through_outage(client.start(), answers, seconds=START_TIMEOUT_SECONDS)
        yield client
    finally:
        try:
            await asyncio.wait_for(client.stop(), STOP_SECONDS)
        except TimeoutError:
            log.warning("kafka's client is left with what was not acknowledged")
