"""Read a service's rows and topics, make its state again in a scratch schema, compare, throw the schema away."""

import importlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ops.connection import Connection, postgres
from ops.state_verification.difference import Difference, compare
from ops.state_verification.live import Live, read_live, read_tables, read_timers
from ops.state_verification.state_rebuild import StateRebuild, events_differ
from ops.state_verification.timeline import Own, passed_over, timeline
from schemas.topics import LISTENS, QUEUE_EVENTS, TOPICS, Topic
from shared.log import configure_logging
from shared.messaging.delivery import Delivery, Record, read
from shared.messaging.partitions import Login
from shared.messaging.reader import TopicReader
from shared.messaging.retention import inbox_kept
from shared.postgres.database import Connection as PostgresConnection
from shared.postgres.migrate import migrate
from shared.service import Service

APPLICATION = "retune replay"
FORGOTTEN_BEFORE = timedelta(days=1)
"""Inboxes are pruned once an hour."""
OUTBOX = "SELECT topic, aggregate_id, sequence, type, value FROM outbox"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Verified:
    service: str
    messages: int
    events: int
    rows: int
    differences: tuple[Difference, ...]


async def verify(connection: Connection, name: str, say: Say) -> Verified:
    """The rows first: what they were made of is in the topics by then, or still in the outbox."""
    async with (
        postgres(connection.require_postgres(), application=APPLICATION) as database,
        database.snapshot() as conn,
    ):
        live = await read_live(conn, name)
    own = await _own_events(connection.kafka, name, live)
    settings = _settings(connection, name)
    service = _built(name, settings)
    heard = await _heard(connection.kafka, service)
    say(f"{name}: {len(heard)} messages and {len(own)} events of its own are read again")
    steps = timeline(heard, own, live)
    async with _scratch(connection.require_postgres(), name, settings) as conn:
        rebuild = StateRebuild(service, conn, live.timers)
        for step in steps:
            await rebuild.take(step)
        await rebuild.fire_rest(live.at)

        def forgotten(topic: str) -> datetime:
            return live.at - inbox_kept(topic, settings.timing) + FORGOTTEN_BEFORE

        differences = [
            *passed_over(heard, live, forgotten=forgotten),
            *rebuild.differences,
            *compare(live.tables, await read_tables(conn, _schema(name))),
            *compare([live.timers], [await read_timers(conn, _schema(name))]),
            *events_differ(own.values(), await conn.fetch(OUTBOX)),
        ]
    rows = sum(len(table.rows) for table in live.tables)
    return Verified(name, len(heard), len(own), rows, tuple(differences))


def _schema(name: str) -> str:
    return f"scratch_{name}"


@asynccontextmanager
async def _scratch(dsn: str, name: str, settings: Any) -> AsyncIterator[PostgresConnection]:
    """A schema with the service's tables, empty; gone afterwards."""
    schema = _schema(name)
    async with postgres(dsn, application=APPLICATION) as outer:
        await outer.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        await outer.execute(f"CREATE SCHEMA {schema}")
        try:
            scratch = settings.postgres_dsn.get_secret_value()
            await migrate(name, scratch)
            async with postgres(scratch, application=APPLICATION) as inner, inner.pool.acquire() as conn:
                yield conn
        finally:
            await outer.execute(f"DROP SCHEMA {schema} CASCADE")


def _settings(connection: Connection, name: str) -> Any:
    """The service's own, from its variables where they are set; addresses and rights are the operator's."""
    settings = importlib.import_module(f"services.{name}.settings").Settings
    return settings(
        kafka_bootstrap=connection.kafka.bootstrap,
        kafka_username=connection.kafka.username,
        kafka_password=connection.kafka.password,
        postgres_dsn=f"{connection.require_postgres()}?search_path={_schema(name)}",
        http_port=0,
    )


def _built(name: str, settings: Any) -> Service:
    """Its code, found by its name as its migrations are; nothing of it is started."""
    configure_logging(name, level=logging.CRITICAL)
    service: Service = importlib.import_module(f"services.{name}.app").build(settings)
    return service


async def _heard(login: Login, service: Service) -> list[Delivery]:
    """Everything it listens to and handles, in order within a partition."""
    deliveries = await _read(login, LISTENS[service.name])
    return [each for each in deliveries if service.wiring.find_handler(each)]


async def _own_events(login: Login, name: str, live: Live) -> Own:
    """What it had emitted at that moment, each once; but what follows from no state that is kept."""
    mine = tuple(
        topic
        for topic in TOPICS
        if topic.writers == (name,) and not topic.name.startswith("parked.") and topic is not QUEUE_EVENTS
    )
    deliveries = [*(await _read(login, mine)), *_unsent(live)]
    return {
        event.envelope.id: event
        for event in deliveries
        if (event.envelope.sequence or 0) <= live.last.get((event.topic.name, event.envelope.key), 0)
        and event.topic in mine
    }


def _unsent(live: Live) -> list[Delivery]:
    deliveries = [read(_record(row)) for row in live.unsent]
    return [each for each in deliveries if isinstance(each, Delivery)]


def _record(row: Any) -> Record:
    headers = [(name, value.encode()) for name, value in row["headers"].items()]
    headers.append(("ce_sequence", str(row["sequence"]).encode()))
    return Record(
        row["topic"], row["partition"], row["offset"], bytes(row["key"]), tuple(headers), row["value"]
    )


async def _read(login: Login, topics: tuple[Topic, ...]) -> list[Delivery]:
    async with TopicReader(login, [topic.name for topic in topics]) as reader:
        return [delivery async for delivery in reader.to_the_end() if isinstance(delivery, Delivery)]
