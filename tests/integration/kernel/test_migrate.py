"""Migrations are applied once each, whole or not at all, and never other than they were."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator

import asyncpg
import pytest

from deploy.local.stack import Stack
from shared.postgres.migrate import MigrationError, migrate
from tests.integration.scratch import empty_schema

pytestmark = pytest.mark.stack

COLUMNS = """
    SELECT table_name, column_name, data_type, is_nullable, column_default IS NULL FROM information_schema.columns
     WHERE table_schema = current_schema() ORDER BY table_name, ordinal_position"""


@pytest.fixture
async def schemas(stack: Stack) -> AsyncIterator[list[str]]:
    """The superuser's DSNs of two empty schemas."""
    async with empty_schema(stack) as one, empty_schema(stack) as other:
        yield [one, other]


async def ask(dsn: str, query: str) -> list[tuple]:
    conn = await asyncpg.connect(dsn)
    try:
        return [tuple(row) for row in await conn.fetch(query)]
    finally:
        await conn.close()


async def run_migrations(dsn: str, failpoints: str = "") -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "shared.postgres.migrate", "tracker"),
        env=os.environ | {"TRACKER_POSTGRES_DSN": dsn, "FAILPOINTS": failpoints},
        stderr=asyncio.subprocess.PIPE,
    )
    _, output = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_a_kill_within_a_migration_leaves_nothing_of_it(schemas):
    undisturbed, disturbed = schemas
    names = await migrate("tracker", undisturbed)
    code, _ = await run_migrations(disturbed, f"migrate.step=kill@{len(names)}")
    assert code == -signal.SIGKILL
    assert await migrate("tracker", disturbed) == names[-1:]
    assert await ask(disturbed, COLUMNS) == await ask(undisturbed, COLUMNS)
    recorded = "SELECT name, sha256 FROM migration ORDER BY name"
    assert await ask(disturbed, recorded) == await ask(undisturbed, recorded)
    assert await migrate("tracker", disturbed) == []


async def test_a_migration_that_was_changed_after_it_was_applied_is_refused(schemas):
    dsn = schemas[0]
    *_, name = await migrate("tracker", dsn)
    [(digest,)] = await ask(dsn, f"SELECT sha256 FROM migration WHERE name = '{name}'")
    await ask(dsn, f"UPDATE migration SET sha256 = 'another' WHERE name = '{name}'")
    code, output = await run_migrations(dsn)
    assert (code, output) == (
        1,
        (
            f"migrate tracker: {name} was changed after it was applied: found sha256 {digest}, expected another; "
            "put it back and write a new migration instead\n"
        ),
    )
    with pytest.raises(MigrationError, match="expected another"):
        await migrate("tracker", dsn)
