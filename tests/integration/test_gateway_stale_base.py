"""A base model that gets other files: every open job on the old ones shows it, in one statement."""

from collections.abc import AsyncIterator
from uuid import uuid4

import asyncpg
import pytest

from deploy.local.stack import Stack
from schemas.envelope import Envelope
from schemas.model import AdaptersStale
from services.gateway.handlers import _stale
from shared.clock import utc_now
from shared.messaging.unit import Unit
from shared.postgres.database import register_json
from shared.postgres.migrate import migrate
from tests.builders import a_job_spec, a_sha
from tests.integration.scratch import empty_schema

pytestmark = pytest.mark.stack

JOBS = 300
FILL = """
    INSERT INTO job (job_id, tenant, spec, dataset_id, created_at, state)
    SELECT $1::text || '-' || number, 'acme', $2::jsonb, 'ds-1', now(), $3 FROM generate_series(1, $4::int) AS number"""
SHOWN = """
    SELECT job.job_id FROM job JOIN job_event USING (job_id, tenant)
     WHERE event_id = $1 AND type = 'JobWarned' AND level = 'warn' AND warnings -> 0 = data
       AND message LIKE '%has other files now%' ORDER BY job_id"""


@pytest.fixture
async def conn(stack: Stack) -> AsyncIterator[asyncpg.Connection]:
    async with empty_schema(stack) as dsn:
        await migrate("gateway", dsn)
        conn = await asyncpg.connect(dsn)
        await register_json(conn)
        yield conn
        await conn.close()


async def fill(
    conn: asyncpg.Connection, name: str, *, state: str = "queued", count: int = 1, **spec: str
) -> None:
    await conn.execute(FILL, name, a_job_spec(**spec).model_dump(mode="json"), state, count)


async def test_every_open_job_on_the_old_files_is_warned_of(conn: asyncpg.Connection):
    await fill(conn, "open", count=JOBS)
    await fill(conn, "over", state="succeeded")
    await fill(conn, "other-name", base_model="other")
    await fill(conn, "other-files", base_sha=a_sha("newer"))
    event = AdaptersStale(base_model="tiny", stale_sha=a_sha("tiny"), new_sha=a_sha("newer"))
    envelope = Envelope(
        id=uuid4().hex, type=event.type, version=2, source="/retune/registry", time=utc_now(), key="tiny"
    )
    asked: list[object] = []
    with conn.query_logger(asked.append):
        async with conn.transaction():
            await _stale(event, Unit(conn, "gateway", utc_now(), envelope))
    shown = [row["job_id"] for row in await conn.fetch(SHOWN, envelope.id)]
    assert shown == sorted(f"open-{number}" for number in range(1, JOBS + 1))
    assert await conn.fetchval("SELECT count(*) FROM job_event") == JOBS
    assert len(asked) < 5
