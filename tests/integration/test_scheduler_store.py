"""What only a real Postgres shows of the scheduler: rows read back whole, locks, and who waits for whom."""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest
from prometheus_client import REGISTRY

from deploy.local.stack import Stack
from schemas.base import CapacityType, DeviceKind, FailureClass
from schemas.job import StopReason
from schemas.lifecycle import TERMINAL, JobState
from schemas.specification import Resources, Tier
from services.scheduler import queue_store, shared_rows, store
from services.scheduler.decide import queue
from services.scheduler.decide.candidate import Candidate
from services.scheduler.decide.decision import Policy
from services.scheduler.decide.ledger import Booking, DeviceType, Ledger
from services.scheduler.decide.queue import Grant, Round
from services.scheduler.handlers import Handlers
from services.scheduler.loops import measure_overdue
from services.scheduler.model import Base, Dataset, DatasetState, Deployment, Job
from shared.clock import utc_now
from shared.errors import ParentUnknown, StaleWrite
from shared.messaging.retention import Pruning, prune
from shared.messaging.unit import Unit
from shared.postgres.database import Connection, Database
from shared.postgres.migrate import migrate
from shared.settings import Timing
from tests.builders import (
    NOON,
    TENANT,
    a_bundle,
    a_dataset,
    a_job,
    a_job_spec,
    a_ledger,
    a_pool,
    a_sha,
    a_stop,
    an_attempt,
    capabilities,
)
from tests.chaos.scale import seed
from tests.integration import scheduler_rows
from tests.integration.scratch import empty_schema
from tests.unit.scheduler import incoming
from tests.unit.scheduler.grants import grants
from tests.unit.scheduler.job_history import History

pytestmark = pytest.mark.stack

APPLICATION = "scheduler-test"
MANY = 1_000_000


@pytest.fixture(scope="module")
async def database(stack: Stack) -> AsyncIterator[Database]:
    async with empty_schema(
        stack
    ) as dsn:  # what services of other tests recorded of a base would fail jobs here
        await migrate("scheduler", dsn)
        database = Database(dsn, application=APPLICATION)
        await database.open()
        yield database
        await database.close()


@pytest.fixture
def mark() -> str:
    return uuid4().hex[:8]


def a_job_of(mark: str, state: JobState = JobState.QUEUED, **changes: object) -> Job:
    """A job that no other test knows, on a dataset and a pool of its own."""
    spec = a_job_spec(resources=Resources(pool=f"pool-{mark}"))
    dataset = a_dataset(dataset_id=f"ds-{mark}")
    fields = {"id": f"ftjob-{mark}", "dataset_id": dataset.dataset_id, "dataset": dataset, "spec": spec}
    return a_job(state, **fields | changes)


async def add(database: Database, *jobs: Job) -> None:
    async with database.transaction() as conn:
        for job in jobs:
            if job.dataset:
                await store.save_dataset(conn, job.dataset)
            await store.add_job(conn, replace(job, state=JobState.VALIDATING))
            await scheduler_rows.save(conn, job)


async def read(database: Database, job_id: str) -> Job:
    async with database.transaction() as conn:
        return await store.find_job(conn, job_id)


def everything_set(mark: str) -> Job:
    facts = (
        incoming.started(),
        incoming.written(a_bundle(10)),
        incoming.written(a_bundle(20)),
        incoming.corrupt(a_bundle(10)),
        incoming.verified(a_bundle(20)),
        incoming.preempted(),
        incoming.lost(),
        incoming.stopped(a_bundle(30)),
        incoming.released(),
        incoming.stale(),
    )
    history = History(a_job_of(mark, JobState.PROVISIONING)).apply(
        *(_about(fact, f"ftjob-{mark}") for fact in facts)
    )
    return replace(
        history.job,
        not_before=NOON + timedelta(seconds=1),
        no_capacity_at={"cpu-spot": NOON},
        requeues={FailureClass.INFRA: 2},
        preempted_at=(NOON, NOON + timedelta(minutes=1)),
    )


def _about(fact, job_id):
    return fact.model_copy(update={"job_id": job_id}) if hasattr(fact, "job_id") else fact


async def test_what_is_saved_is_read_back_whole(database: Database, mark: str):
    job = everything_set(mark)
    await add(database, job)
    assert await read(database, job.id) == replace(job, revision=1)


@pytest.mark.parametrize("state", [JobState.VALIDATING, JobState.QUEUED, JobState.EVALUATING])
async def test_what_is_not_there_yet_is_read_back_as_nothing(database: Database, mark: str, state: JobState):
    job = a_job_of(mark, state, dataset=None)
    await add(database, job)
    assert await read(database, job.id) == replace(job, revision=1)


async def test_a_job_written_by_another_meanwhile_is_not_overwritten(database: Database, mark: str):
    job = a_job_of(mark)
    await add(database, job)
    async with database.transaction() as conn:
        with pytest.raises(StaleWrite, match=f"job {job.id} changed since revision 0"):
            await scheduler_rows.save(conn, job)


async def test_a_fact_about_an_unknown_job_waits_for_it(database: Database, mark: str):
    async with database.transaction() as conn:
        with pytest.raises(ParentUnknown) as unknown:
            await shared_rows.get_job(Unit(conn, "scheduler", utc_now()), f"ftjob-{mark}")
    assert unknown.value.parent == f"job:ftjob-{mark}"


async def one_pass(database: Database) -> bool:
    """Whether there may be more to start."""
    async with database.transaction() as conn:
        return await Handlers(Policy()).start_waiting(Unit(conn, "scheduler", utc_now()))


async def is_blocked(database: Database) -> bool:
    waits = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'"
    return bool(await database.fetchval(waits, APPLICATION))


async def test_passes_at_the_same_time_book_a_node_once(database: Database, mark: str):
    first = a_job_of(f"{mark}-1", spec=a_job_spec(resources=Resources(pool=mark)))
    better = a_job_of(f"{mark}-2", spec=a_job_spec(resources=Resources(pool=mark), tier=Tier.PREMIUM))
    await add(database, first)
    async with database.transaction() as conn:
        await queue_store.save_pool(conn, a_pool(mark, nodes=1))
        await Handlers(Policy()).start_waiting(Unit(conn, "scheduler", utc_now()))
        await add(database, better)
        other = asyncio.create_task(one_pass(database))
        while not await is_blocked(database):
            assert not other.done(), "the second pass did not wait for the first"
            await asyncio.sleep(0.02)
    await other
    states = [(await read(database, job.id)).state for job in (first, better)]
    assert states == [JobState.PROVISIONING, JobState.QUEUED]


async def test_what_the_nodes_of_a_pool_compute_on_is_kept(database: Database, mark: str):
    job = a_job_of(mark, spec=a_job_spec(resources=Resources(pool=mark)))
    await add(database, job)
    pool = a_pool(
        mark,
        nodes=1,
        device=DeviceKind.CUDA,
        device_memory_bytes=80 * 2**30,
        accelerator="H100",
        drained=(0,),
        max_devices_per_job=4,
        tenants=("acme", "other"),
    )
    async with database.transaction() as conn:
        await queue_store.save_pool(conn, pool)
        [kept] = [each for each in (await queue_store.get_ledger(conn)).pools if each.name == mark]
        await Handlers(Policy()).start_waiting(Unit(conn, "scheduler", utc_now()))
    assert kept == pool
    placement = (await read(database, job.id)).present.placement
    assert (placement.device, placement.machines, placement.taken_per_node) == (DeviceKind.CUDA, (1,), 1)


async def test_a_pass_leaves_a_job_alone_that_somebody_is_at(database: Database, mark: str):
    job = a_job_of(mark)
    await add(database, job)
    async with database.transaction() as busy, database.transaction() as conn:
        await store.find_job(busy, job.id)
        assert await store.find_queued_jobs(conn, [job.id]) == {}


async def test_nodes_are_freed_once_and_counted_by_tenant(database: Database, mark: str):
    tenant = f"tenant-{mark}"
    run = an_attempt(stop=a_stop(StopReason.CANCEL))
    placement = replace(run.placement, pool=f"pool-{mark}", nodes=3, machines=(0, 2, 3), taken_per_node=8)
    run = replace(run, placement=placement, ends_by=NOON + timedelta(hours=9))
    await add(database, a_job_of(mark, JobState.STOPPING, run=run, tenant=tenant))
    async with database.transaction() as conn:
        await queue_store.save_pool(
            conn, a_pool(f"pool-{mark}", nodes=4, devices_per_node=8, device=DeviceKind.CUDA)
        )
        ledger = await queue_store.get_ledger(conn)
        assert ledger.devices_held[tenant] == {DeviceType(DeviceKind.CUDA): 24}
        [pool] = [pool for pool in ledger.pools if pool.name == placement.pool]
        assert pool.bookings == (Booking((0, 2, 3), 8, run.scheduled_at, run.ends_by),)
        assert pool.free == {0: 0, 1: 8, 2: 0, 3: 0}
        await store.free_nodes(conn, [(f"ftjob-{mark}", 1, NOON)])
        await store.free_nodes(conn, [(f"ftjob-{mark}", 1, NOON + timedelta(hours=1))])
        ledger = await queue_store.get_ledger(conn)
        freed_at = await conn.fetchval("SELECT freed_at FROM attempt WHERE job_id = $1", f"ftjob-{mark}")
    assert (tenant in ledger.devices_held, freed_at) == (False, NOON)


async def test_a_duplicate_is_an_earlier_job_of_the_tenant_that_came_to_something(
    database: Database, mark: str
):
    tenant = f"tenant-{mark}"
    first = a_job_of(f"{mark}-1", tenant=tenant)
    failed = a_job_of(f"{mark}-0", JobState.FAILED, tenant=tenant, submitted_at=NOON - timedelta(hours=1))
    others = a_job_of(f"{mark}-2", tenant=f"other-{mark}", submitted_at=NOON - timedelta(hours=1))
    await add(database, first, failed, others)
    twin = a_job_of(f"{mark}-3", tenant=tenant, submitted_at=NOON + timedelta(seconds=1))
    async with database.transaction() as conn:
        assert await store.find_duplicate(conn, twin, twin.plan.config_hash) == first.id
        assert await store.find_duplicate(conn, first, first.plan.config_hash) is None
        assert await store.find_duplicate(conn, twin, "0" * 64) is None


async def test_the_queue_is_read_as_its_jobs_say(database: Database, mark: str):
    resources = Resources(
        nodes=2,
        devices_per_node=4,
        capacity_type=CapacityType.SPOT,
        pool=f"pool-{mark}",
        max_run_seconds=3_600,
    )
    job = a_job_of(mark, spec=a_job_spec(resources=resources), not_before=NOON, no_capacity_at={"a": NOON})
    await add(database, job)
    async with database.transaction() as conn:
        waiting = await queue_store.candidates(conn, now=NOON, at_most=MANY)
        backing_off = await queue_store.candidates(conn, now=NOON - timedelta(seconds=1), at_most=MANY)
        everyone = await queue_store.everyone_queued(conn)
    assert [each for each in everyone if each.job_id == job.id] == [
        Candidate.of(job, queued_at=job.queued_at)
    ]
    assert [each for each in waiting if each.job_id == job.id] == [Candidate.of(job, queued_at=job.queued_at)]
    assert job.id not in {each.job_id for each in backing_off}


async def test_run_times_within_a_factor_of_two_are_one_kind(database: Database, mark: str):
    seconds = {"hour": 3_600, "less": 3_599, "minute": 60, "none": None}
    for name, longest in seconds.items():
        spec = a_job_spec(resources=Resources(pool=f"pool-{mark}", max_run_seconds=longest))
        await add(database, a_job_of(f"{mark}-{name}", spec=spec))
    query = "SELECT id, kind FROM job WHERE id LIKE $1"
    kinds = {
        row["id"].rpartition("-")[2]: row["kind"] for row in await database.fetch(query, f"ftjob-{mark}-%")
    }
    assert kinds["hour"] == kinds["less"]
    assert len({kinds["hour"], kinds["minute"], kinds["none"]}) == 3


async def test_the_oldest_of_each_kind_decide_like_the_whole_queue(database: Database, mark: str):
    draw = random.Random(seed())
    jobs = {f"ftjob-{mark}-{number}": a_waiting_job(f"{mark}-{number}", draw) for number in range(200)}
    await add(database, *jobs.values())
    everyone = [Candidate.of(job, queued_at=job.queued_at) for job in jobs.values()]
    async with database.transaction() as conn:
        oldest = [
            each for each in await queue_store.candidates(conn, now=NOON, at_most=MANY) if each.job_id in jobs
        ]
        assert len(oldest) < len(everyone)
        for free in (1, 2, 9, 30, 300):
            pools = (a_pool(nodes=9, booked=9 - min(free, 9)), a_pool("cpu-on-demand", nodes=free))
            ledger = a_ledger(*pools, ann=draw.randrange(4), bob=draw.randrange(4))
            granted = await grants_read_by_and_by(conn, oldest, ledger)
            assert granted == grants(everyone, ledger, now=NOON), f"CHAOS_SEED={seed()}, {free} nodes free"
            assert 0 < len(granted) <= min(len(jobs), 2 * free)


async def grants_read_by_and_by(conn: Connection, oldest: list[Candidate], ledger: Ledger) -> list[Grant]:
    grants_of_round, granted = Round(oldest, ledger, now=NOON), []
    while grant := grants_of_round.next():
        granted.append(grant)
        for follower in await queue_store.find_followers(conn, grant.candidate, now=NOON, at_most=1):
            grants_of_round.add(follower)
    return granted


async def test_a_round_is_one_transaction_and_continues_where_it_was_full(
    database: Database, mark: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(queue, "GRANTS_OF_A_ROUND", 2)
    # Jobs of other tests are younger, though some of their tenants have less.
    monkeypatch.setattr(queue, "rank", lambda candidate, ledger: (0.0, candidate.queued_at, candidate.job_id))
    spec = a_job_spec(resources=Resources(pool=mark))
    before_all_others = NOON - timedelta(days=1)
    jobs = [a_job_of(f"{mark}-{number}", spec=spec, queued_at=before_all_others) for number in range(5)]
    await add(database, *jobs)
    async with database.transaction() as conn:
        await queue_store.save_pool(conn, a_pool(mark, nodes=9))
    begun = []
    for _ in range(2):
        has_more = await one_pass(database)
        states = [(await read(database, job.id)).state for job in jobs]
        begun.append((states.count(JobState.PROVISIONING), has_more))
    assert begun == [(2, True), (4, True)]


async def test_what_was_ignored_long_ago_is_deleted(database: Database, mark: str):
    kept = Timing().history_retention
    ages = {"new": kept - timedelta(minutes=1), "old": kept + timedelta(minutes=1)}
    for name, age in ages.items():
        row = (mark, name, "JobRunning", "", utc_now() - age)
        await database.execute(store.RECORD_IGNORED, *row)
    await prune(database, Pruning(store.PRUNE_IGNORED, kept))
    assert await database.fetchval("SELECT array_agg(event_id) FROM ignored WHERE job_id = $1", mark) == [
        "new"
    ]


def a_waiting_job(mark: str, draw: random.Random) -> Job:
    resources = Resources(nodes=draw.choice((1, 1, 2)), capacity_type=draw.choice(("spot", "spot-first")))
    return a_job_of(
        mark,
        tenant=draw.choice(("ann", "bob", "cid")),
        no_capacity_at=draw.choice(({}, {}, {}, {"cpu-spot": NOON - timedelta(seconds=draw.randrange(30))})),
        spec=a_job_spec(resources=resources, tier=draw.choice(tuple(Tier))),
        queued_at=NOON - timedelta(seconds=draw.randrange(2400)),
    )


async def test_a_dataset_concerns_the_jobs_without_an_attempt(database: Database, mark: str):
    concerned = [JobState.VALIDATING, JobState.QUEUED, JobState.PAUSED]
    jobs = [a_job_of(mark, state, id=f"ftjob-{mark}-{state}") for state in JobState]
    await add(database, *jobs)
    async with database.transaction() as conn:
        on_dataset = await store.jobs_on_dataset(conn, f"ds-{mark}", after="", at_most=MANY)
        await store.save_dataset(conn, Dataset(f"ds-{mark}", TENANT, DatasetState.DELETED, "gone"))
        assert (await store.find_dataset(conn, f"ds-{mark}")).state is DatasetState.DELETED
    assert {job.state for job in on_dataset} == set(concerned)


async def test_a_base_concerns_every_job_that_is_not_over(database: Database, mark: str):
    sha = mark.ljust(64, "0")
    jobs = [
        a_job_of(mark, state, id=f"ftjob-{mark}-{state}", spec=a_job_spec(base_sha=sha)) for state in JobState
    ]
    await add(database, *jobs)
    async with database.transaction() as conn:
        states = {job.state for job in await store.jobs_on_base(conn, "tiny", sha, after="", at_most=MANY)}
        assert await store.jobs_on_base(conn, "another", sha, after="", at_most=MANY) == []
        assert await store.jobs_stale_on_base(conn, "tiny", sha, after="", at_most=MANY) == []
        saved = History(await store.find_job(conn, f"ftjob-{mark}-paused")).apply(incoming.stale()).job
        await scheduler_rows.save(conn, saved)
        (stale,) = await store.jobs_stale_on_base(conn, "tiny", sha, after="", at_most=MANY)
    assert states == set(JobState) - TERMINAL
    assert stale.id == saved.id


async def test_what_a_name_points_to_is_known_once_it_was_said(database: Database, mark: str):
    async with database.transaction() as conn:
        assert await store.find_base(conn, mark) is None
        for base in (Base(a_sha("one"), capabilities()), Base(a_sha("two"))):
            await store.save_base_model(conn, mark, base)
            assert await store.find_base(conn, mark) == base


async def test_serving_concerns_the_jobs_that_wait_for_the_slot(database: Database, mark: str):
    slot = f"ft:{mark}"
    approved = incoming.approved().model_copy(update={"slot": slot})
    waiting = History(a_job_of(mark, JobState.EVALUATING)).apply(approved).job
    await add(database, waiting)
    async with database.transaction() as conn:
        for generation in (2, 1):
            await store.save_deployment(conn, Deployment(slot, TENANT, generation, is_ready=True))
        known = await store.find_deployment(conn, TENANT, slot)
        assert [job.id for job in await store.jobs_waiting_for(conn, known)] == [waiting.id]
        assert await store.jobs_waiting_for(conn, replace(known, tenant="other")) == []
    assert known.generation == 2


class TestOverdueJobs:
    """Counted from the rows, by a process that has handled nothing yet."""

    async def overdue(self, database: Database, state: JobState) -> float:
        async with database.transaction() as conn:
            await measure_overdue(Unit(conn, "scheduler", utc_now()), Policy())
        jobs = REGISTRY.get_sample_value("jobs_overdue", {"state": state})
        assert jobs is not None
        return jobs

    @pytest.mark.parametrize("state", [JobState.PROVISIONING, JobState.STOPPING])
    async def test_are_counted_and_forgotten(self, database: Database, mark: str, state: JobState):
        before, past = await self.overdue(database, state), utc_now() - timedelta(minutes=10)
        job = a_job_of(mark, state, stop=replace(a_stop(), deadline=past))
        await add(database, replace(job, run=replace(job.present, start_deadline=past)))
        assert await self.overdue(database, state) == before + 1
        await database.execute("UPDATE job SET state = 'failed' WHERE id = $1", job.id)
        assert await self.overdue(database, state) == before

    async def test_are_not_those_whose_time_is_to_come(self, database: Database, mark: str):
        before = await self.overdue(database, JobState.STOPPING)
        await add(database, a_job_of(mark, JobState.STOPPING, stop=replace(a_stop(), deadline=utc_now())))
        assert await self.overdue(database, JobState.STOPPING) == before
