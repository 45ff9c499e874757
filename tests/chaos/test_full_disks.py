"""The disk of Postgres or of Kafka is full for a while: nothing is lost or parked, and nobody needs to help."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

import asyncpg
import pytest

from deploy.local import kafka, postgres
from deploy.local.stack import Stack
from shared.messaging.login import Login
from tests.chaos import pipeline
from tests.chaos.nemesis import SmallDisk, small_disk
from tests.chaos.scale import note, scaled
from tests.chaos.traffic import Load, traffic
from tests.waiting import until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(scaled(1200, 1200, 3600))]

SERVICES = ("provisioner", "tracker")
MEBIBYTES = 512
LONGER_THAN_ALL_ATTEMPTS_SECONDS = 20.0
"""Those that a handler has before its message is parked."""


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, SmallDisk]]:
    """Of Postgres and of Kafka, each one of its own."""
    root = tmp_path_factory.mktemp("small")
    with ExitStack() as mounted:
        small_disks = {
            name: mounted.enter_context(small_disk(root / name, mebibytes=MEBIBYTES))
            for name in (postgres.NAME, kafka.NAME)
        }
        for disk in small_disks.values():
            if not isinstance(disk, SmallDisk):
                pytest.skip(disk)
        yield small_disks


@pytest.fixture(scope="module")
async def pair(disks: dict[str, SmallDisk]) -> AsyncIterator[Stack]:
    stack = Stack(disks[kafka.NAME].folder.parent)
    await stack.up(())
    await pipeline.migrated(stack, *SERVICES)
    for service in SERVICES:
        await pipeline.start(stack, service)
    for service in SERVICES:
        await stack.wait_healthy(service)
    yield stack
    await stack.down()


@pytest.fixture
async def load(pair: Stack) -> AsyncIterator[Load]:
    login = Login(pair.kafka_bootstrap, "admin", pair.kafka_password("admin"))
    async with (
        asyncpg.create_pool(pair.postgres_dsn("operator"), min_size=0, max_size=2) as db,
        traffic(pair, db, login) as load,
    ):
        yield load


async def test_of_postgres(load: Load, disks: dict[str, SmallDisk]):
    async with load.nothing_lost_or_doubled():
        for _ in range(scaled(1, 1, 50)):
            refused = load.writers.unknown

            async def is_felt(refused: int = refused) -> bool:
                return load.writers.unknown > refused

            async with disks[postgres.NAME].full():
                await until(is_felt, "a commit to be refused")
                await asyncio.sleep(LONGER_THAN_ALL_ATTEMPTS_SECONDS)
            await load.books.until_effects(20)
            note(
                "disk of Postgres full",
                seconds=LONGER_THAN_ALL_ATTEMPTS_SECONDS,
                refused=load.writers.unknown - refused,
            )


async def test_of_kafka(load: Load, pair: Stack, disks: dict[str, SmallDisk]):
    async with load.nothing_lost_or_doubled():
        for _ in range(scaled(1, 2, 50)):
            deaths = pair._supervisor.child(kafka.NAME).deaths

            async def is_felt(deaths: int = deaths) -> bool:
                return pair._supervisor.child(kafka.NAME).deaths > deaths

            async with disks[kafka.NAME].full():
                await until(is_felt, "the broker to give up")
                seconds = load.random.uniform(0, 10)
                await asyncio.sleep(seconds)
            await load.books.until_effects(20)
            note("disk of Kafka full", seconds_after_its_end=seconds)
    assert load.writers.unknown == 0, "writers need no Kafka"
