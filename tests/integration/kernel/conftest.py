"""A producer that writes as the provisioner, and waiting for conditions."""

import itertools
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
import structlog

from deploy.local.stack import Stack
from schemas.envelope import Envelope, to_headers
from schemas.node import NodesReleased
from shared.messaging.delivery import Delivery
from shared.messaging.kafka import kafka_producer
from shared.messaging.login import Login
from shared.messaging.reader import TopicReader
from shared.postgres.database import Database
from shared.postgres.migrate import migrate
from shared.service import Service
from tests.integration.kernel import counting
from tests.integration.kernel.victim import Victim

NODE_EVENTS = "node.events"


@pytest.fixture(autouse=True)
def plain_tracebacks() -> Iterator[None]:
    """The default ones show every variable, which takes seconds each."""
    before = structlog.get_config()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
        ]
    )
    yield
    structlog.configure(**before)


class Writer:
    """Writes to node.events as the provisioner would, and as nobody should."""

    def __init__(self, stack: Stack, user: str = "provisioner") -> None:
        self._stack = stack
        self._user = user
        self._numbers: dict[str, itertools.count] = {}

    async def __aenter__(self) -> "Writer":
        password = self._stack.kafka_password(self._user)
        bootstrap = self._stack.kafka_bootstrap
        self._producer = kafka_producer(bootstrap, self._user, password, client_id="writer")
        await self._producer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._producer.stop()

    def message(
        self, key: str, *, tenant: str = "acme", event_id: str = "", **changed: Any
    ) -> dict[str, Any]:
        """A good record as keyword arguments of `raw`; `changed` are attributes of its envelope."""
        message = NodesReleased(job_id=key, tenant=tenant, attempt=1, nodes=())
        numbers = self._numbers.setdefault(key, itertools.count(1))
        attributes: dict[str, Any] = {
            "id": event_id or uuid4().hex,
            "type": message.type,
            "version": 1,
            "source": "/retune/provisioner",
            "time": datetime.now(UTC),
            "key": key,
            "sequence": changed["sequence"] if "sequence" in changed else next(numbers),
        }
        envelope = Envelope(**(attributes | changed))
        return {
            "key": key.encode(),
            "value": message.model_dump_json().encode(),
            "headers": to_headers(envelope),
        }

    async def raw(
        self, *, key: bytes | None, value: bytes | None, headers: list, timestamp_ms: int | None = None
    ) -> Any:
        return await self._producer.send_and_wait(
            NODE_EVENTS, value=value, key=key, headers=headers, partition=0, timestamp_ms=timestamp_ms
        )

    async def good(self, key: str, **changed: Any) -> str:
        record = self.message(key, **changed)
        await self.raw(**record)
        return dict(record["headers"])["ce_id"].decode()


def new_key() -> str:
    return uuid4().hex


@pytest.fixture(scope="module")
async def tracker_env(stack: Stack) -> dict[str, str]:
    env = stack.service_env("tracker")
    await migrate("tracker", env["TRACKER_POSTGRES_DSN"])
    return env


@pytest.fixture(scope="module")
async def db(tracker_env: dict[str, str]) -> AsyncIterator[asyncpg.Connection]:
    conn = await asyncpg.connect(tracker_env["TRACKER_POSTGRES_DSN"])
    await conn.execute(counting.CREATE_EFFECT)
    yield conn
    await conn.close()


@pytest.fixture
async def database(tracker_env: dict[str, str], db: asyncpg.Connection) -> AsyncIterator[Database]:
    database = Database(tracker_env["TRACKER_POSTGRES_DSN"], application="test")
    await database.open()
    yield database
    await database.close()


@pytest.fixture(scope="module")
async def writer(stack: Stack) -> AsyncIterator[Writer]:
    async with Writer(stack) as writer:
        yield writer


@pytest.fixture
async def service(tracker_env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    for name, value in tracker_env.items():
        monkeypatch.setenv(name, value)
    service = counting.build()
    async with service.running():
        yield service


@pytest.fixture
def victim(tracker_env: dict[str, str], tmp_path: Path) -> Victim:
    return Victim(tracker_env, tmp_path / "victim.log")


@pytest.fixture(scope="module")
def login(stack: Stack) -> Login:
    return Login(stack.kafka_bootstrap, "admin", stack.kafka_password("admin"))


async def costs_of(login: Login, key: str) -> list[Any]:
    """Every CostAccrued in Kafka about this job, with duplicates that the relay may have sent."""
    async with TopicReader(login, ["cost.events"]) as reader:
        deliveries = [each async for each in reader.to_the_end() if isinstance(each, Delivery)]
    return [each for each in deliveries if each.envelope.key == key]
