"""Records that were fetched together share a transaction; nothing else changes by it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import asyncpg
import pytest
from aiokafka.partitioner import murmur2

from schemas.node import NodesReleased
from shared.messaging.consumer import Handler
from shared.messaging.unit import Unit
from shared.service import Service
from tests.integration.kernel import counting
from tests.integration.kernel.conftest import NODE_EVENTS, Writer, new_key
from tests.integration.kernel.victim import Victim
from tests.waiting import until

pytestmark = pytest.mark.stack

HOSTILE = """
    SELECT event_id, reason, xmin::text AS tx FROM parked
     WHERE topic = $1 AND "offset" = ANY($2) ORDER BY id"""
WAITS = """
    SELECT true FROM pg_stat_activity
     WHERE wait_event_type = 'Lock' AND clock_timestamp() - query_start > interval '1 second'"""
LOCK_STORY = "SELECT FROM sequence WHERE aggregate_id = $1 FOR UPDATE"
EFFECTS = (
    "SELECT aggregate_id, event_id, xmin::text AS tx FROM effect WHERE aggregate_id = ANY($1) ORDER BY number"
)


def partition_of(key: str) -> int:
    """Of any topic with up to four partitions, so that what is written first is read first."""
    return (murmur2(key.encode()) & 0x7FFFFFFF) % 12


@asynccontextmanager
async def serving(
    tracker_env: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    released: Handler = counting.nodes_released,
) -> AsyncIterator[Service]:
    for name, value in tracker_env.items():
        monkeypatch.setenv(name, value)
    async with counting.build(released=released).running() as service:
        yield service


async def effects(db: asyncpg.Connection, keys: Sequence[str], number: int) -> list[asyncpg.Record]:
    async def all_there() -> list[asyncpg.Record]:
        rows = await db.fetch(EFFECTS, list(keys))
        return rows if len(rows) >= number else []

    return await until(all_there, f"{number} effects")


async def test_plain_records_share_transactions(tracker_env, monkeypatch, writer: Writer, db):
    keys = [new_key() for _ in range(5)]
    sent = [await writer.good(key) for _ in range(8) for key in keys]
    async with serving(tracker_env, monkeypatch):
        rows = await effects(db, keys, len(sent))
    assert [row["event_id"] for row in rows] == sent
    assert len({row["tx"] for row in rows}) < len(sent) // 2


async def test_one_that_is_not_plain_leaves_the_others_as_they_would_be(tracker_env, monkeypatch, writer, db):
    good, hopeless, orphan = (new_key() for _ in range(3))
    sent = [await writer.good(good) for _ in range(4)]
    bad = [await writer.good(hopeless, tenant="hopeless") for _ in range(2)]
    await writer.raw(key=b"k", value=b"not json", headers=[])
    waiting = await writer.good(orphan, tenant="orphan")
    sent += [await writer.good(good) for _ in range(4)]
    async with serving(tracker_env, monkeypatch):
        rows = await effects(db, [good], len(sent))
        reasons = await until(lambda: parked(db, bad), "both hopeless ones parked")
    assert [row["event_id"] for row in rows] == sent
    assert reasons == ["rejected", "behind_parked"]
    assert await db.fetchval("SELECT event_id FROM waiting WHERE aggregate_id = $1", orphan) == waiting
    await db.execute("DELETE FROM waiting WHERE aggregate_id = $1", orphan)


async def test_what_cannot_be_read_is_parked_in_the_transaction_of_its_neighbours(
    tracker_env, monkeypatch, writer: Writer, db
):
    key, sent, offsets = new_key(), [], []
    for _ in range(6):
        offsets.append((await writer.raw(key=b"k", value=b"not json", headers=[])).offset)
        sent.append(await writer.good(key))
    async with serving(tracker_env, monkeypatch):
        rows = await effects(db, [key], 6)
    hostile = await db.fetch(HOSTILE, NODE_EVENTS, offsets)
    assert [row["event_id"] for row in rows] == sent
    assert len(hostile) == 6
    assert len({row["tx"] for row in (*rows, *hostile)}) < 6
    assert {row["tx"] for row in hostile} & {row["tx"] for row in rows}


async def test_what_is_not_admitted_is_parked_in_the_transaction_of_its_neighbours(
    tracker_env, monkeypatch, writer: Writer, db
):
    good, gapped = new_key(), new_key()
    await writer.good(gapped)
    writer.message(gapped)  # takes a number and is never sent
    sent, offsets = [], []
    for _ in range(6):
        offsets.append((await writer.raw(**writer.message(gapped))).offset)
        sent.append(await writer.good(good))
    async with serving(tracker_env, monkeypatch):
        rows = await effects(db, [good], 6)
    held = await db.fetch(HOSTILE, NODE_EVENTS, offsets)
    assert [row["event_id"] for row in rows] == sent
    assert [row["reason"] for row in held] == ["gap"] + ["behind_parked"] * 5
    assert len({row["tx"] for row in (*rows, *held)}) < 6
    assert {row["tx"] for row in held} & {row["tx"] for row in rows}


async def parked(db: asyncpg.Connection, event_ids: Sequence[str]) -> list[str]:
    rows = await db.fetch("SELECT reason FROM parked WHERE event_id = ANY($1) ORDER BY id", list(event_ids))
    return [row["reason"] for row in rows] if len(rows) == len(event_ids) else []


async def test_a_record_that_comes_twice_in_one_fetch_has_one_effect(tracker_env, monkeypatch, writer, db):
    key = new_key()
    record = writer.message(key)
    for _ in range(6):
        await writer.raw(**record)
    last = await writer.good(key)
    async with serving(tracker_env, monkeypatch):
        rows = await effects(db, [key], 2)
    assert [row["event_id"] for row in rows] == [dict(record["headers"])["ce_id"].decode(), last]


@pytest.mark.parametrize(
    "failpoint",
    ["inbox.inserted", "park.inserted", "db.commit.before", "db.commit.after", "offset.commit.before"],
)
async def test_a_kill_within_leaves_all_or_nothing(victim: Victim, writer: Writer, db, failpoint: str):
    keys = [new_key() for _ in range(4)]
    sent = [await writer.good(key) for _ in range(3) for key in keys]
    bad = await writer.raw(key=b"k", value=b"not json", headers=[])
    sent += [await writer.good(key) for _ in range(2) for key in keys]
    async with victim.killed_at(failpoint):
        pass
    async with victim.alive():
        rows = await effects(db, keys, len(sent))
    assert [row["event_id"] for row in rows] == sent
    assert len(await db.fetch(HOSTILE, NODE_EVENTS, [bad.offset])) == 1


async def test_a_shared_transaction_gives_way_to_who_holds_a_lock(
    tracker_env, monkeypatch, writer: Writer, db
):
    """Else two that share could wait for each other, each with the locks of several messages."""
    locked = new_key()
    free = next(key for key in iter(new_key, "") if partition_of(key) == partition_of(locked))
    await writer.good(locked)
    async with serving(tracker_env, monkeypatch):
        await effects(db, [locked], 1)
    sent = [await writer.good(key) for key in (free, locked)]
    async with db.transaction():
        await db.execute(LOCK_STORY, locked)
        async with serving(tracker_env, monkeypatch):
            await until(lambda: db.fetchval(WAITS), "somebody to wait for the lock")
            [row] = await db.fetch(EFFECTS, [free])
            assert row["event_id"] == sent[0], "whoever waits does so alone"
    async with serving(tracker_env, monkeypatch):
        rows = await effects(db, [free, locked], 3)
    assert [each["event_id"] for each in rows[-1:]] == sent[1:]


async def test_a_slow_handler_does_not_hold_the_locks_of_the_others(
    tracker_env, monkeypatch, writer: Writer, db
):
    """After TOGETHER_SECONDS what is done is committed, and the rest comes in the next transaction."""
    monkeypatch.setattr("shared.messaging.consumer.TOGETHER_SECONDS", 0.0)
    key = new_key()
    sent = [await writer.good(key) for _ in range(6)]
    async with serving(tracker_env, monkeypatch):
        rows = await effects(db, [key], len(sent))
    assert [row["event_id"] for row in rows] == sent
    assert len({row["tx"] for row in rows}) == len(sent)


@pytest.mark.parametrize("fails_for", [1, 2], ids=["together", "not together"])
async def test_what_messages_leave_for_the_end_is_done_once_in_their_transaction(
    tracker_env, monkeypatch, writer: Writer, db, fails_for: int
):
    """If it fails, each has it done in a transaction of its own: the first messages keep their effect."""
    calls: list[int] = []

    async def at_the_end(unit: Unit) -> bool:
        transaction = await unit.conn.fetchval(
            "SELECT count(*) FROM effect WHERE xmin = pg_current_xact_id()::xid"
        )
        calls.append(transaction)
        if transaction >= fails_for > 1:
            raise RuntimeError("this many are too many")
        return False

    async def released(event: NodesReleased, unit: Unit) -> None:
        await counting.nodes_released(event, unit)
        await unit.afterwards(at_the_end)

    key = new_key()
    sent = [await writer.good(key) for _ in range(6)]
    async with serving(tracker_env, monkeypatch, released=released):
        rows = await effects(db, [key], len(sent))
    assert [row["event_id"] for row in rows] == sent
    num_transactions = len({row["tx"] for row in rows})
    if fails_for == 1:
        assert num_transactions < len(sent)
        assert len(calls) == num_transactions, "it is called once in each"
    else:
        assert num_transactions == len(sent)
