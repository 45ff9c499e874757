"""Checks whether Kafka is unavailable, which is waited for, or answers while a client is stuck."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

from aiokafka.conn import collect_hosts, create_conn
from aiokafka.errors import KafkaError
from aiokafka.protocol.metadata import MetadataRequest

from shared.log import get_logger
from shared.messaging.kafka import sasl
from shared.settings import ServiceSettings
from shared.tls import CA_FILE

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
    """Kafka answers, but one of our clients makes no progress. Only a new process fixes that."""


async def kafka_answers(settings: ServiceSettings) -> bool:
    """Return whether a new connection to one of the brokers gets the metadata of the cluster."""
    login = sasl(
        settings.kafka_username,
        settings.kafka_password.get_secret_value(),
        ca_file=settings.tls.ca_file,
    )
    for host, port, _ in collect_hosts(settings.kafka_bootstrap):
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await _ask_for_metadata(host, port, login)
        except (KafkaError, OSError, TimeoutError) as error:
            if isinstance(error, ssl.SSLError):
                log.warning(
                    "broker is not trusted", broker=f"{host}:{port}", setting=CA_FILE, error=str(error)
                )
            continue
        return True
    return False


async def _ask_for_metadata(host: str, port: int, login: dict[str, Any]) -> None:
    """Ask over a connection of our own: the client's own bootstrap leaves its connection open if it is cancelled."""
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
    """Return the result of `work`. Raises ClientUnresponsive if it takes `seconds` more after Kafka has answered."""
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
    """Start and stop the client; its own `async with` leaves it open if the start fails, and may hang at each end."""
    try:
        await await_through_outage(client.start(), answers, seconds=START_TIMEOUT_SECONDS)
        yield client
    finally:
        try:
            await asyncio.wait_for(client.stop(), STOP_SECONDS)
        except TimeoutError:
            log.warning("kafka's client is left with what was not acknowledged")
