"""One real Kafka, Postgres and S3 for all of these tests, with a proxy in front of each."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from deploy.local.stack import Stack
from shared.messaging.login import Login
from tests.chaos.fronts import Fronts, fronts
from tests.chaos.scale import seed
from tests.integration.conftest import process_ends
from tests.integration.kernel.conftest import plain_tracebacks

__all__ = ["plain_tracebacks", "process_ends"]


@pytest.fixture(scope="package")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("chaos"), tenants=("demo", "other"))
    await stack.up(())
    yield stack
    await stack.down()


@pytest.fixture(scope="package")
async def lines(stack: Stack) -> AsyncIterator[Fronts]:
    async with fronts(stack, seed=seed()) as lines:
        yield lines


@pytest.fixture(scope="package")
def login(stack: Stack) -> Login:
    return Login(stack.kafka_bootstrap, "admin", stack.kafka_password("admin"))


@pytest.fixture(scope="package")
async def db(stack: Stack) -> AsyncIterator[asyncpg.Pool]:
    """Reads every schema; opens a connection again where Postgres was killed."""
    async with asyncpg.create_pool(
        stack.postgres_dsn("operator"), min_size=0, max_size=2, max_inactive_connection_lifetime=1
    ) as pool:
        yield pool
