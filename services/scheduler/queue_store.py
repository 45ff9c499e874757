"""The SQL of the queue and of the ledger: who waits, and who holds which devices. One function per question."""

from collections import Counter, defaultdict
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache

from asyncpg import Record
from pydantic import TypeAdapter

from schemas.elastic import sizes_of
from schemas.specification import Resources
from services.scheduler.decide.candidate import Candidate, longest_hold
from services.scheduler.decide.growth import ElasticAttempt
from services.scheduler.decide.ledger import Booking, DeviceType, Ledger, Pool
from shared.postgres.database import Connection
from shared.postgres.rows import Columns, read

TIMES_BY_POOL = TypeAdapter(dict[str, datetime])

LOCK_LEDGER = "SELECT singleton FROM ledger FOR UPDATE"
POOL = Columns(
    "name, capacity_type, nodes, devices_per_node, price_per_hour, changed_at, device, device_memory_bytes,"
    " accelerator, drained, max_devices_per_job, tenants, is_removed, leases"
)
POOLS = f"SELECT {POOL.selected} FROM pool"
BOOKING = Columns("machines, taken_per_node=devices, scheduled_at=since, ends_by")
BOOKINGS = f"SELECT pool, tenant, {BOOKING.selected} FROM attempt WHERE freed_at IS NULL"
DEVICE_LIMITS = "SELECT tenant, devices FROM device_limit WHERE devices IS NOT NULL"
SAVE_DEVICE_LIMIT = """
    INSERT INTO device_limit (tenant, devices) VALUES ($1, $2) ON CONFLICT (tenant) DO UPDATE SET devices = $2"""
SAVE_POOL = f"""
    INSERT INTO pool ({POOL.names}) VALUES ({POOL.parameters()})
    ON CONFLICT (name) DO UPDATE SET {POOL.excluded}"""

WAITING = """
    id AS job_id, tenant, spec ->> 'tier' AS tier, queued_at, spec ->> 'resources' AS resources, not_before,
      turned_away AS no_capacity_at
      FROM job WHERE state = 'queued'"""
IS_DUE = "(not_before IS NULL OR not_before <= $1)"

# From kind to kind by the index: a queue of any length costs as much as it has kinds. Those refused for want of
# capacity differ in more than age, though they are one kind.
KINDS_WAITING = """
    RECURSIVE waiting AS (
        (SELECT kind, turned_away <> '{}' AS differ FROM job WHERE state = 'queued' ORDER BY kind LIMIT 1)
        UNION ALL
        SELECT following.kind, following.differ FROM waiting CROSS JOIN LATERAL (
            SELECT kind, turned_away <> '{}' AS differ FROM job
             WHERE state = 'queued' AND kind > waiting.kind ORDER BY kind LIMIT 1) AS following)"""
CANDIDATES = f"""
    WITH {KINDS_WAITING}
    SELECT oldest.* FROM waiting CROSS JOIN LATERAL (
        SELECT {WAITING} AND job.kind = waiting.kind AND {IS_DUE}
         ORDER BY queued_at, id LIMIT CASE WHEN waiting.differ THEN $2::bigint ELSE 1 END) AS oldest"""
FIND_FOLLOWERS = f"""
    SELECT {WAITING} AND {IS_DUE} AND kind = (SELECT kind FROM job WHERE id = $2) AND (queued_at, id) > ($3, $2)
     ORDER BY queued_at, id LIMIT $4"""
# Those of one kind want the same, but for run times within a factor of two: what they want is read once.
WISHES = f"""
    WITH {KINDS_WAITING}
    SELECT waiting.kind, oldest.* FROM waiting CROSS JOIN LATERAL (
        SELECT {WAITING} AND job.kind = waiting.kind ORDER BY queued_at, id LIMIT 1) AS oldest"""
# Those that could have more nodes: the index job_elastic has the jobs in question and no other.
ELASTIC_ATTEMPTS = f"""
    SELECT job.id AS job_id, job.tenant, spec ->> 'tier' AS tier, queued_at, spec ->> 'resources' AS resources,
           attempt.pool, {BOOKING.selected}
      FROM job JOIN attempt ON attempt.job_id = job.id AND attempt.number = job.attempt
     WHERE job.state = 'running' AND spec -> 'resources' ? 'min_nodes' AND freed_at IS NULL
       AND attempt.nodes < (spec -> 'resources' ->> 'nodes')::int AND scheduled_at <= $1
     ORDER BY scheduled_at, job.id"""
IS_ONE_GROWING = """
    SELECT EXISTS (SELECT FROM job JOIN attempt ON attempt.job_id = job.id AND attempt.number = job.attempt
                    WHERE job.state = 'stopping' AND attempt.stop ->> 'reason' = 'grow')"""
READ_AT_ONCE = 1_000
EVERYONE_QUEUED = """
    SELECT id AS job_id, kind, queued_at, not_before, turned_away AS no_capacity_at FROM job WHERE state = 'queued'"""
# What ended within a day, and of that the last, says how long jobs run now.
RUN_TIME = """
    SELECT avg(freed_at - scheduled_at) FROM (
        SELECT freed_at, scheduled_at FROM attempt WHERE freed_at > $1::timestamptz - interval '1 day'
         ORDER BY freed_at DESC LIMIT 100) AS ended"""
IS_BACK_OFF_OVER = """
    SELECT EXISTS (SELECT FROM job WHERE state = 'queued' AND not_before > $1 AND not_before <= $2)"""
IS_ANYONE_QUEUED = "SELECT EXISTS (SELECT FROM job WHERE state = 'queued')"


async def lock_ledger(conn: Connection) -> None:
    """Until the end of the transaction nobody else books nodes or changes pools."""
    await conn.execute(LOCK_LEDGER)


async def get_ledger(conn: Connection) -> Ledger:
    bookings = defaultdict[str, list[Booking]](list)
    devices_held = defaultdict[str, Counter[DeviceType]](Counter)
    pools = {row["name"]: read(Pool, row) for row in await conn.fetch(POOLS)}
    for row in await conn.fetch(BOOKINGS):
        booking = _booking(row)
        bookings[row["pool"]].append(booking)
        if pool := pools.get(row["pool"]):
            devices_held[row["tenant"]][pool.device_type] += len(booking.machines) * booking.devices
    booked = tuple(pool.with_bookings(bookings[name]) for name, pool in pools.items())
    limits = {row["tenant"]: row["devices"] for row in await conn.fetch(DEVICE_LIMITS)}
    return Ledger(booked, devices_held, limits)


async def save_device_limit(conn: Connection, tenant: str, devices: int | None) -> None:
    await conn.execute(SAVE_DEVICE_LIMIT, tenant, devices)


async def save_pool(conn: Connection, pool: Pool) -> None:
    await conn.execute(SAVE_POOL, *POOL.values(pool))


async def is_anyone_queued(conn: Connection) -> bool:
    return bool(await conn.fetchval(IS_ANYONE_QUEUED))


async def is_back_off_over(conn: Connection, since: datetime, until: datetime) -> bool:
    return bool(await conn.fetchval(IS_BACK_OFF_OVER, since, until))


async def candidates(conn: Connection, *, now: datetime, at_most: int) -> list[Candidate]:
    """The oldest job of each kind that does not back off, and up to `at_most` of a kind that has no capacity."""
    return [_candidate(row) for row in await conn.fetch(CANDIDATES, now, at_most)]


async def everyone_queued(conn: Connection) -> list[Candidate]:
    """But those whose kind came up between two statements. Read in parts: other tasks run in between."""
    wishes = {row["kind"]: _candidate(row) for row in await conn.fetch(WISHES)}
    cursor, everyone = await conn.cursor(EVERYONE_QUEUED), list[Candidate]()
    while rows := await cursor.fetch(READ_AT_ONCE):
        everyone += [_alike(wishes[row["kind"]], row) for row in rows if row["kind"] in wishes]
    return everyone


async def one_of_each_kind(conn: Connection) -> list[Candidate]:
    """The oldest queued job of each kind, whether it backs off or not."""
    return [_candidate(row) for row in await conn.fetch(WISHES)]


async def elastic_attempts(conn: Connection, *, scheduled_by: datetime) -> list[ElasticAttempt]:
    """The running attempts of elastic jobs that have fewer nodes than they may, the oldest first."""
    return [
        ElasticAttempt(_candidate(row), row["pool"], _booking(row))
        for row in await conn.fetch(ELASTIC_ATTEMPTS, scheduled_by)
    ]


async def is_one_growing(conn: Connection) -> bool:
    """Whether an attempt is being stopped to continue on more nodes, which are free still."""
    return bool(await conn.fetchval(IS_ONE_GROWING))


async def typical_run_time(conn: Connection, *, now: datetime) -> timedelta | None:
    """How long an attempt holds its nodes, of late; None where none has ended lately."""
    average: timedelta | None = await conn.fetchval(RUN_TIME, now)
    return average


async def find_followers(
    conn: Connection, candidate: Candidate, *, now: datetime, at_most: int
) -> list[Candidate]:
    """The next of its kind, the oldest first. Those without capacity are all known as candidates."""
    if candidate.no_capacity_at:
        return []
    rows = await conn.fetch(FIND_FOLLOWERS, now, candidate.job_id, candidate.queued_at, at_most)
    return [_candidate(row) for row in rows]


def _booking(row: Record) -> Booking:
    return Booking(tuple(row["machines"]), row["devices"], row["since"], row["ends_by"])


def _candidate(row: Record) -> Candidate:
    least, *larger = _sizes(row["resources"])
    return read(Candidate, row, resources=least, larger=tuple(larger), longest=longest_hold(least))


@lru_cache(maxsize=1_000)
def _sizes(resources: str) -> tuple[Resources, ...]:
    return sizes_of(Resources.model_validate_json(resources))


def _alike(other: Candidate, row: Record) -> Candidate:
    return replace(
        other,
        job_id=row["job_id"],
        queued_at=row["queued_at"],
        not_before=row["not_before"],
        no_capacity_at=TIMES_BY_POOL.validate_python(row["no_capacity_at"]) if row["no_capacity_at"] else {},
    )
