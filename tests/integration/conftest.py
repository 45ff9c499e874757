"""One real Kafka, Postgres and S3 for the whole test run; a test starts the services that it needs."""

from collections.abc import AsyncIterator

import pytest

from deploy.local.stack import Stack


@pytest.fixture(scope="package")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("stack"), tenants=("demo", "other"))
    await stack.up(())
    yield stack
    await stack.down()
