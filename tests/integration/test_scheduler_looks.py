"""What the scheduler does though no message came: it looks at the queue, and tells who waits where they stand."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, cast

import pytest

from schemas.base import CapacityType
from schemas.lifecycle import JobState
from schemas.node import PoolCapacityChanged
from schemas.specification import Resources
from services.scheduler import handlers, queue_store
from services.scheduler.decide import queue
from services.scheduler.decide.decision import Policy
from services.scheduler.model import Job
from shared.clock import utc_now
from shared.loops import Loop
from shared.messaging.unit import Unit
from shared.postgres.database import Database
from shared.service import Service
from tests.builders import a_job_spec, a_pool
from tests.integration.test_scheduler_store import a_job_of, add, database, mark, read

__all__ = ["database", "mark"]

pytestmark = pytest.mark.stack


@dataclass
class Looks:
    """In place of the service: its look at the queue, taken by hand at a time of the test."""

    database: Database
    now: datetime
    loops: dict[str, Loop] = field(default_factory=dict)
    handlers: dict[type, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        handlers.register(
            cast("Service", self),
            Policy(),
            look_every=timedelta(seconds=1),
            look_anyway_every=timedelta(seconds=5),
            announce_every=timedelta(seconds=30),
        )

    def every(self, _period: timedelta, function: Loop, *, singleton: bool = False) -> None:
        self.loops[function.__name__] = function

    def on(self, message: type, handler: Any, **_: Any) -> None:
        self.handlers[message] = handler

    on_timer = on

    def on_task(self, _payload: type, **_: Any) -> None: ...

    def on_lead(self, _: Loop) -> None: ...

    @asynccontextmanager
    async def unit(self) -> AsyncIterator[Unit]:
        async with self.database.transaction() as conn:
            yield Unit(conn, "scheduler", self.now)

    async def look(self, after: timedelta) -> None:
        self.now += after
        await self.loops["look_at_queue"]()


async def states(database: Database, *jobs: Job) -> list[JobState]:
    return [(await read(database, job.id)).state for job in jobs]


async def test_the_queue_is_looked_at_when_a_back_off_ends_and_now_and_then(database: Database, mark: str):
    looks = Looks(database, utc_now())
    spec = a_job_spec(resources=Resources(pool=mark))
    backing_off = a_job_of(f"{mark}-1", spec=spec, not_before=looks.now + timedelta(seconds=2))
    silent = a_job_of(f"{mark}-2", spec=spec)
    async with database.transaction() as conn:
        await queue_store.save_pool(conn, a_pool(mark, nodes=2))
    await add(database, backing_off)
    await looks.look(timedelta())
    await looks.look(timedelta(seconds=1))
    assert await states(database, backing_off) == [JobState.QUEUED]
    await looks.look(timedelta(seconds=1))
    assert await states(database, backing_off) == [JobState.PROVISIONING]
    await add(database, silent)
    await looks.look(timedelta(seconds=4))
    assert await states(database, silent) == [JobState.QUEUED], (
        "no news and no back-off: nothing was to be done"
    )
    await looks.look(timedelta(seconds=1))
    assert await states(database, silent) == [JobState.PROVISIONING]


async def test_what_a_full_round_of_a_message_leaves_starts_at_the_next_look(
    database: Database, mark: str, monkeypatch: pytest.MonkeyPatch
):
    looks = Looks(database, utc_now())
    await looks.look(timedelta())
    monkeypatch.setattr(queue, "GRANTS_OF_A_ROUND", 1)
    jobs = [
        a_job_of(f"{mark}-{index}", spec=a_job_spec(resources=Resources(pool=mark))) for index in range(3)
    ]
    await add(database, *jobs)
    pool = PoolCapacityChanged(
        pool=mark,
        capacity_type=CapacityType.SPOT,
        nodes=3,
        free=3,
        devices_per_node=1,
        price_per_hour=Decimal(0),
    )
    async with looks.unit() as unit:
        await looks.handlers[PoolCapacityChanged](pool, unit)
    assert Counter(await states(database, *jobs))[JobState.PROVISIONING] == 1
    await looks.look(timedelta(seconds=1))
    assert Counter(await states(database, *jobs))[JobState.PROVISIONING] == 3


@pytest.mark.parametrize(("share", "announced"), [(1e9, 1), (1e-9, 0)])
async def test_where_jobs_stand_is_worked_out_the_less_often_the_longer_it_takes(
    database: Database, mark: str, monkeypatch: pytest.MonkeyPatch, share: float, announced: int
):
    monkeypatch.setattr(handlers, "ANNOUNCING_SHARE", share)
    looks = Looks(database, utc_now())
    await looks.loops["announce_positions"]()
    job = a_job_of(mark)
    await add(database, job)
    await looks.loops["announce_positions"]()
    query = "SELECT count(*) FROM outbox WHERE aggregate_id = $1 AND type = 'QueuePositionChanged'"
    assert await database.fetchval(query, job.id) == announced
