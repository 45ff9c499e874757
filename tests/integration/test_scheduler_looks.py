"""What the scheduler does though no message came: it looks at the queue, and tells who waits where they stand."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, cast

import pytest

from schemas.base import CapacityType
from schemas.job import StopReason
from schemas.lifecycle import JobState
from schemas.node import PoolCapacityChanged
from schemas.specification import Resources
from services.scheduler import handlers, loops, queue_store
from services.scheduler.decide import queue
from services.scheduler.decide.decision import Policy
from services.scheduler.model import Job
from shared.clock import utc_now
from shared.loops import Loop
from shared.messaging.unit import Unit
from shared.postgres.database import Database
from shared.service import Service
from tests.builders import a_bundle, a_job_spec, a_placement, a_pool
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
    leads: list[Loop] = field(default_factory=list)

    def __post_init__(self) -> None:
        service = cast("Service", self)
        loops.register(
            service,
            handlers.register(service, Policy()),
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

    def on_lead(self, function: Loop) -> None:
        self.leads.append(function)

    @asynccontextmanager
    async def unit(self) -> AsyncIterator[Unit]:
        async with self.database.transaction() as conn:
            yield Unit(conn, "scheduler", self.now)

    async def grow(self, after: timedelta) -> None:
        self.now += after
        await self.loops["grow_elastic"]()

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
    monkeypatch.setattr(loops, "ANNOUNCING_SHARE", share)
    looks = Looks(database, utc_now())
    await looks.loops["announce_positions"]()
    job = a_job_of(mark)
    await add(database, job)
    await looks.loops["announce_positions"]()
    query = "SELECT count(*) FROM outbox WHERE aggregate_id = $1 AND type = 'QueuePositionChanged'"
    assert await database.fetchval(query, job.id) == announced


def an_elastic_job(mark: str, now: datetime, **changes: Any) -> Job:
    """It has run on one node for an hour, and is halfway."""
    spec = a_job_spec(resources=Resources(nodes=3, min_nodes=1, pool=mark))
    job = a_job_of(mark, JobState.RUNNING, spec=spec, verified=frozenset({a_bundle(300)}), **changes)
    job = replace(job, plan=replace(job.plan, num_steps=600))
    return job.with_run(placement=a_placement(mark), scheduled_at=now - timedelta(hours=1))


async def test_an_elastic_job_grows_once_it_could_have_had_more_for_long(database: Database, mark: str):
    looks = Looks(database, utc_now())
    job = an_elastic_job(mark, looks.now)
    queued = a_job_of(f"{mark}-2", spec=a_job_spec(resources=Resources(pool=mark, nodes=2)))
    async with database.transaction() as conn:
        await queue_store.save_pool(conn, a_pool(mark, nodes=2))
    await add(database, job, queued)
    for _ in range(2):
        await looks.grow(timedelta(minutes=5))
    assert await states(database, job) == [JobState.RUNNING], "somebody waits who could use the pool"
    await database.execute("UPDATE job SET state = 'paused' WHERE id = $1", queued.id)
    await looks.grow(timedelta(seconds=5))
    await looks.grow(timedelta(minutes=4, seconds=59))
    assert await states(database, job) == [JobState.RUNNING]
    await looks.grow(timedelta(seconds=1))
    stopped = await read(database, job.id)
    assert stopped.state is JobState.STOPPING
    assert (stopped.present.stop.reason, stopped.present.stop.message) == (
        StopReason.GROW,
        "continues on 2 nodes in place of 1: they are free, and nobody waits",
    )


async def test_one_grows_at_a_time_and_a_new_leader_begins_to_count_again(database: Database, mark: str):
    looks = Looks(database, utc_now())
    await database.execute("UPDATE job SET state = 'cancelled' WHERE state = 'stopping'")  # of another test
    jobs = [an_elastic_job(f"{mark}-{index}", looks.now) for index in range(2)]
    async with database.transaction() as conn:
        for job in jobs:
            await queue_store.save_pool(conn, a_pool(job.present.placement.pool, nodes=3))
    await add(database, *jobs)
    await looks.grow(timedelta())
    for leads in looks.leads:
        await leads()
    await looks.grow(timedelta(minutes=5))
    assert Counter(await states(database, *jobs)) == {JobState.RUNNING: 2}
    for _ in range(2):
        await looks.grow(timedelta(minutes=5))
        assert Counter(await states(database, *jobs)) == {JobState.RUNNING: 1, JobState.STOPPING: 1}
