"""A base model that changes under thousands of slots: they are withdrawn in batches, and none is forgotten."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from deploy.local.stack import Stack
from services.registry import store
from services.registry.handlers import base_models
from services.registry.handlers.base_models import WITHDRAWN_TOGETHER, ImportBaseModel, WithdrawStale
from shared.clock import utc_now
from shared.messaging.unit import Unit
from shared.postgres.database import register_json
from shared.postgres.migrate import migrate
from tests.builders import a_sha
from tests.integration.registry_world import db, numbers, objects, world
from tests.integration.scratch import empty_schema
from tests.waiting import until

__all__ = ["db", "objects", "world"]

pytestmark = pytest.mark.stack

SLOTS = 2_030
STATEMENTS = 300
"""Of a transaction, whatever the number of slots."""
ADD_VERSIONS = """
    INSERT INTO model_version (model_id, tenant, job_id, digest, full_name, kind, rank, base_model, base_sha,
        dataset_version, config_hash, template_sha256, bundle_attempt, bundle_step, bundle_manifest_sha256, auto_deploy,
        stage, eval_id, registered_at)
    SELECT 'mv-' || $1 || '-' || n, 'demo', 'ftjob-' || $1 || '-' || n, 'd' || n, $1 || '-' || n, 'adapter', 4, $1, $2,
           'd', 'c', 't', 1, 1, 'm', true, 'staging', 'eval', now() FROM generate_series(1, $3::int) AS n"""
ADD_SLOTS = """
    INSERT INTO slot (tenant, name, desired)
    SELECT tenant, full_name, model_id FROM model_version WHERE base_model = $1 AND base_sha = $2"""
ADD_GENERATIONS = """
    INSERT INTO slot_generation (tenant, slot, number, model_id, digest, outcome)
    SELECT tenant, full_name, 1, model_id, digest, 'ready' FROM model_version WHERE base_model = $1 AND base_sha = $2"""
WITHDRAWN = "SELECT count(*) FROM slot_generation WHERE slot LIKE $1 || '-%' AND outcome = 'withdrawn'"
END_NEXT = """
    DELETE FROM task WHERE (kind, key) = (SELECT kind, key FROM task WHERE kind = 'WithdrawStale' ORDER BY key LIMIT 1)
    RETURNING payload"""
SERVING = "SELECT count(*) FROM slot WHERE name LIKE $1 || '-%' AND desired IS NOT NULL"


async def serve(conn: asyncpg.Connection, base_model: str, base_sha: str, count: int) -> None:
    await conn.execute(ADD_VERSIONS, base_model, base_sha, count)
    for statement in (ADD_SLOTS, ADD_GENERATIONS):
        await conn.execute(statement, base_model, base_sha)


@dataclass
class Registry:
    """Handlers on a schema of their own; each transaction says how many statements it had."""

    conn: asyncpg.Connection
    statements: list[int] = field(default_factory=list)

    @asynccontextmanager
    async def unit(self) -> AsyncIterator[Unit]:
        asked: list[Any] = []
        with self.conn.query_logger(asked.append):
            async with self.conn.transaction():
                yield Unit(self.conn, "registry", utc_now())
        self.statements.append(len(asked))

    async def points(self, name: str, base_sha: str) -> None:
        manifest = SimpleNamespace(
            template_sha256=a_sha("template"),
            context_tokens=512,
            num_parameters=1,
            training_template_sha256=None,
        )
        mirrored = SimpleNamespace(
            base_sha=base_sha, manifest_sha256=a_sha("manifest"), source="directory", manifest=manifest,
            capabilities=None, shapes={},
        )  # fmt: skip
        task = ImportBaseModel(command_id="1", name=name, source={"kind": "directory", "path": "/"})
        async with self.unit() as unit:
            await base_models.imported(task, mirrored, unit)

    async def withdraw_next(self) -> bool:
        """As the kernel ends a task: its row goes in the same transaction."""
        async with self.unit() as unit:
            row = await self.conn.fetchrow(END_NEXT)
            if row is not None:
                await base_models.withdraw(WithdrawStale.model_validate(row["payload"]), None, unit)
        return row is not None


@pytest.fixture
async def registry(stack: Stack) -> AsyncIterator[Registry]:
    async with empty_schema(stack) as dsn:
        await migrate("registry", dsn)
        conn = await asyncpg.connect(dsn)
        await register_json(conn)
        yield Registry(conn)
        await conn.close()


async def test_no_transaction_grows_with_the_number_of_slots(registry: Registry):
    old, new = a_sha("old"), a_sha("new")
    await registry.points("tiny", old)
    await serve(registry.conn, "tiny", old, SLOTS)
    await serve(registry.conn, "tiny", new, 0)
    await registry.points("tiny", new)
    assert await registry.conn.fetchval(SERVING, "tiny") == SLOTS, "the change itself withdraws none"
    changed = registry.statements[-1]
    batches = 0
    while await registry.withdraw_next():
        batches += 1
    assert max(changed, *registry.statements[:2]) < 30
    assert max(registry.statements) < STATEMENTS
    assert batches == SLOTS // WITHDRAWN_TOGETHER + 2, "the last finds none"
    assert await registry.conn.fetchval(SERVING, "tiny") == 0
    assert await registry.conn.fetchval(WITHDRAWN, "tiny") == SLOTS
    facts = await registry.conn.fetch("SELECT aggregate_id FROM outbox WHERE aggregate_id LIKE 'tiny-%'")
    assert len(facts) == len(set(facts)) == SLOTS


async def test_nothing_is_withdrawn_once_the_name_points_back(registry: Registry):
    old, new = a_sha("old"), a_sha("new")
    await registry.points("tiny", old)
    await serve(registry.conn, "tiny", old, WITHDRAWN_TOGETHER + 1)
    await registry.points("tiny", new)
    assert await registry.withdraw_next()
    await registry.points("tiny", old)
    while await registry.withdraw_next():
        pass
    assert await registry.conn.fetchval(SERVING, "tiny") == 1


async def test_slots_of_another_base_with_these_files_continue(registry: Registry):
    old, new = a_sha("old"), a_sha("new")
    for name in ("tiny", "other"):
        await registry.points(name, old)
        await serve(registry.conn, name, old, 3)
    await registry.points("tiny", new)
    while await registry.withdraw_next():
        pass
    assert [await registry.conn.fetchval(SERVING, name) for name in ("tiny", "other")] == [0, 3]


async def test_generations_are_written_where_they_changed(registry: Registry):
    await registry.points("tiny", a_sha("old"))
    await serve(registry.conn, "tiny", a_sha("old"), 1)
    await registry.conn.execute(
        """INSERT INTO slot_generation (tenant, slot, number, model_id, digest, outcome)
           SELECT 'demo', 'tiny-1', n, 'mv-tiny-1', 'd1', 'ready' FROM generate_series(2, 100) AS n"""
    )
    places = "SELECT number, ctid::text AS at FROM slot_generation ORDER BY number"
    before = await registry.conn.fetch(places)
    async with registry.unit() as unit:
        slot = await store.find_slot(unit.conn, "demo", "tiny-1")
        assert slot is not None
        await store.save_slot(unit.conn, slot.withdraw())
    assert (await registry.conn.fetch(places))[:-1] == before
    assert len(before) == 100


async def test_a_kill_between_two_batches_forgets_no_slot(stack: Stack, world: Any, db: asyncpg.Connection):
    name = f"many-{next(numbers)}"
    base = await world.register_base(name, marker="before")
    await serve(db, name, base.base_sha, SLOTS)
    await world.register_base(name, marker="after")

    async def begun() -> bool:
        return bool(await db.fetchval(WITHDRAWN, name))

    await until(begun, "the first batch")
    await stack.kill("registry")
    assert 0 < await db.fetchval(WITHDRAWN, name) < SLOTS, "it was killed in between"
    await stack.wait_healthy("registry")

    async def done() -> bool:
        return int(await db.fetchval(WITHDRAWN, name)) == SLOTS

    await until(done, "all to be withdrawn")
    names = [f"{name}-{number}" for number in range(1, SLOTS + 1)]
    await until(lambda: all(world.ear.heard[slot] for slot in names), "all facts")
    assert {tuple(world.ear.types(slot)) for slot in names} == {("DeploymentWithdrawn",)}
    assert await db.fetchval(SERVING, name) == 0
