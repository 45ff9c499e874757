"""SIGKILL at every failpoint of the kernel: each message has one effect, each fact is in Kafka, in order."""

import json

import pytest

from schemas.parked import ReplayParked
from shared.messaging.reader import send
from tests.chaos.scale import note
from tests.integration.kernel.conftest import costs_of, new_key
from tests.waiting import until

pytestmark = [pytest.mark.stack, pytest.mark.crash_matrix]

FAILPOINTS = (
    "consume.decoded",
    "tx.begun",
    "inbox.inserted",
    "outbox.inserted",
    "state.written",
    "db.commit.before",
    "db.commit.after",
    "offset.commit.before",
    "offset.commit.after",
    "relay.read",
    "relay.sent",
    "relay.marked",
    "gc.deleted",
    "lease.acquired",
    "lease.renewed",
    "lease.lost",
)
TAKE_LEASE_AWAY = """
    UPDATE lease SET owner = 'another', token = token + 1, expires_at = clock_timestamp() + interval '1 second'
     WHERE name = 'relay' AND token > $1 RETURNING true"""
FIND_TOKEN = "SELECT token FROM lease WHERE name = 'relay'"
HAS_BEEN_TAKEN = "SELECT token > $1 FROM lease WHERE name = 'relay'"
PUBLISHED = """
    SELECT value FROM outbox
     WHERE type = $1 AND NOT EXISTS (SELECT FROM unpublished WHERE unpublished.id = outbox.id)"""
ARE_PUBLISHED = """
    SELECT count(*) = $2 AND count(unpublished.id) = 0 FROM outbox LEFT JOIN unpublished USING (id)
     WHERE aggregate_id = $1"""
ADD_OLD_ROW = """
    INSERT INTO inbox VALUES ('tracker', 'node.events', $1, '', clock_timestamp() - interval '100 days')"""


async def test_a_kill_at_any_failpoint_loses_and_doubles_nothing(victim, writer, db, login):
    key = new_key()
    await db.execute(ADD_OLD_ROW, key)
    sent, tokens = [], []
    for name in FAILPOINTS:
        async with victim.killed_at(name):
            sent.append(await writer.good(key))
            if name == "lease.lost":
                await until(lambda: db.fetchval(TAKE_LEASE_AWAY, tokens[-1]), "the victim's lease")
        tokens.append(await db.fetchval(FIND_TOKEN))
    async with victim.alive():
        await until(lambda: _all_published(db, key, len(sent)), "every fact published")
        await until(lambda: db.fetchval(HAS_BEEN_TAKEN, tokens[-1]), "the lease that was another's")
    assert await _effects(db, key) == sent
    assert await db.fetchval("SELECT count(*) FROM inbox WHERE event_id = $1", key) == 0
    assert tokens[-1] > tokens[-2]
    published = await costs_of(login, key)
    distinct = list(dict.fromkeys((each.envelope.sequence, each.envelope.id) for each in published))
    assert [sequence for sequence, _ in distinct] == list(range(1, len(sent) + 1))
    assert len(published) > len(sent), "the kill between send and mark must have sent a fact twice"
    note("killed at each failpoint of the kernel", kills=len(sent), sent_again=len(published) - len(distinct))


async def test_an_error_that_no_loop_recovers_from_ends_the_process_and_loses_nothing(victim, writer, db):
    key, sent = new_key(), []
    for name in ("consume.decoded", "offset.commit.before", "relay.read"):
        async with victim.failing_at(name):
            sent.append(await writer.good(key))
    async with victim.alive():
        await until(lambda: _all_published(db, key, len(sent)), "every fact published")
    assert await _effects(db, key) == sent
    ends = [line["where"] for line in victim.log_lines() if line["event"] == "process ends"]
    assert [where.split("/")[0] for where in ends] == ["consume node.events"] * 2 + ["relay"]


async def test_a_kill_while_parking_parks_once(victim, writer, db):
    key = new_key()
    async with victim.killed_at("park.inserted"):
        await writer.good(key, tenant="hopeless")
    assert await _parked(db, key) == []
    async with victim.alive():
        await until(lambda: _told(db, "MessageParked", key), "the fact that it is parked")
    assert [row["state"] for row in await _parked(db, key)] == ["parked"]
    assert await _told(db, "MessageParked", key) == 1


async def test_a_kill_during_a_replay_applies_the_message_once(victim, writer, db, login):
    key = new_key()
    async with victim.killed_at("dlq.replayed"):
        event_id = await writer.good(key, tenant="early")
        [row] = await until(lambda: _parked(db, key), "the message parked")
        await db.execute("INSERT INTO parent VALUES ($1)", key)
        await send(login, ReplayParked(service="tracker", parked_id=row["id"]), writer="admin")
    assert await _told(db, "ParkedResolved", row["id"]) == 0
    async with victim.alive():
        await until(lambda: _told(db, "ParkedResolved", row["id"]), "the fact that it is resolved")
    assert await _effects(db, key) == [event_id]
    assert [row["state"] for row in await _parked(db, key)] == ["replayed"]
    assert await _told(db, "ParkedResolved", row["id"]) == 1
    assert await db.fetchval("SELECT count(*) FROM task WHERE kind = 'ReplayTask'") == 0


async def _effects(db, key: str) -> list[str]:
    rows = await db.fetch("SELECT event_id FROM effect WHERE aggregate_id = $1 ORDER BY number", key)
    return [row["event_id"] for row in rows]


async def _parked(db, key: str) -> list:
    return await db.fetch("SELECT id, state FROM parked WHERE aggregate_id = $1", key)


async def _told(db, kind: str, about: object) -> int:
    """How many facts of this kind are in Kafka about a story or a parked row."""
    rows = await db.fetch(PUBLISHED, kind)
    facts = [json.loads(row["value"]) for row in rows]
    return sum(about in (fact.get("aggregate_id"), fact["parked_id"]) for fact in facts)


async def _all_published(db, key: str, count: int) -> bool:
    return await db.fetchval(
        ARE_PUBLISHED,
        key,
        count,
    )
