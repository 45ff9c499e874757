"""Singleton loops run in one process at a time, and what an earlier leader still writes is refused."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from shared.loops import repeat
from shared.messaging import lease as leases
from shared.messaging.leader import Leader, require_lead
from shared.messaging.lease import Lease, LeaseLost
from shared.postgres.database import Database
from tests.chaos.scale import note
from tests.waiting import until

pytestmark = pytest.mark.stack

TTL = timedelta(seconds=1.5)
RENEW = timedelta(seconds=0.1)
TAKE_OVER = "UPDATE lease SET owner = 'another', token = token + 1, expires_at = clock_timestamp() + $1"


class Away(Lease):
    """Postgres answers until `is_away` is set."""

    is_away = False

    async def hold(self) -> bool:
        self._require_answer()
        return await super().hold()

    async def renew(self) -> bool:
        self._require_answer()
        return await super().renew()

    def _require_answer(self) -> None:
        if self.is_away:
            raise asyncpg.AdminShutdownError("fast shutdown")


class Process:
    """One of a service; its singleton loop writes as often as it can."""

    def __init__(self, database: Database, owner: str, terms: list[str]) -> None:
        self._database = database
        self._owner = owner
        self._terms = terms
        self.lost: list[LeaseLost] = []
        self.writes = 0
        self.lease = Away(database, "leader", owner=owner, ttl=TTL)
        self._leader = Leader(self.lease, ttl=TTL, renew=RENEW)
        self._leader.begin_hooks.append(self._begin)
        self._leader.loops.append(lambda: repeat(timedelta(), self.write))
        self._leader.end_hooks.append(self._end)
        self._task = asyncio.create_task(self._leader.run())

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def write(self) -> None:
        try:
            async with self._database.transaction() as conn:
                await require_lead(conn)
        except LeaseLost as lost:
            self.lost.append(lost)
            raise
        self.writes += 1

    async def has_written(self) -> bool:
        return self.writes > 0

    async def has_lost(self) -> bool:
        return bool(self.lost)

    async def has_ended(self) -> bool:
        return self._terms[-1] == f"{self._owner} ends"

    async def _begin(self) -> None:
        self._terms.append(f"{self._owner} begins")

    async def _end(self) -> None:
        self._terms.append(f"{self._owner} ends")


@pytest.fixture
async def terms(db: asyncpg.Connection) -> AsyncIterator[list[str]]:
    """When which process began and ended to lead."""
    await db.execute("DELETE FROM lease")
    yield []
    await db.execute("DELETE FROM lease")


async def test_the_second_process_leads_once_the_first_has_stopped(database, terms):
    first = Process(database, "tracker-0", terms)
    await until(first.has_written, "the first process to lead")
    second = Process(database, "tracker-1", terms)
    await first.stop()
    await until(second.has_written, "the second process to lead")
    await second.stop()
    assert terms == [f"tracker-{number} {what}" for number in (0, 1) for what in ("begins", "ends")]
    note("leader stopped", terms=len(terms) // 2)


async def test_who_leads_no_more_writes_nothing_and_ends_its_loops(database, db, terms):
    process = Process(database, "tracker-0", terms)
    await until(process.has_written, "the process to lead")
    await db.execute(TAKE_OVER, timedelta(hours=1))
    await until(process.has_lost, "a write that is refused")
    await until(process.has_ended, "the end of its loops")
    await process.stop()
    assert terms == ["tracker-0 begins", "tracker-0 ends"]
    note("lease taken away", terms=len(terms) // 2)


async def test_a_commit_under_the_lease_comes_before_the_next_grant(database, db, terms):
    lease = Lease(database, "leader", owner="tracker-0", ttl=TTL)
    assert await lease.hold()
    async with database.transaction() as conn:
        await lease.require(conn)
        taking = asyncio.create_task(db.execute(TAKE_OVER, timedelta(hours=1)))
        blocked = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        await until(lambda: database.fetchval(blocked), "the grant to wait for the commit")
        assert not taking.done()
    await taking


async def test_a_leader_that_cannot_renew_ends_before_its_lease_does(database, terms, monkeypatch):
    monkeypatch.setattr(leases, "RENEW_AGAIN_SECONDS", 0.05)
    first = Process(database, "tracker-0", terms)
    await until(first.has_written, "the first process to lead")
    first.lease.is_away = True
    second = Process(database, "tracker-1", terms)
    await until(second.has_written, "the second process to lead")
    await first.stop()
    await second.stop()
    assert terms[:3] == ["tracker-0 begins", "tracker-0 ends", "tracker-1 begins"]
    note("leader that cannot renew", writes_after_its_end=len(first.lost))
    assert first.lost == []
