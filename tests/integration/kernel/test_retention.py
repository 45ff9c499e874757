"""What the kernel deletes of its own: all that is old, however much, and nothing that is still to be sent."""

from datetime import timedelta

import pytest

from shared.messaging import retention
from shared.messaging.retention import prune_kernel
from shared.settings import Timing

pytestmark = pytest.mark.stack

INSERT_ROWS = """
    INSERT INTO outbox (event_id, topic, aggregate_id, sequence, type, headers, value, created_at)
    SELECT $1 || number, 'none', $1, number, 'None', '{}', '', clock_timestamp() - $2::interval
      FROM generate_series(1, 25) AS number"""
HOLD_BACK = "INSERT INTO unpublished SELECT id FROM outbox WHERE aggregate_id = $1 AND sequence = 7"
INSERT_APPLIED = """
    INSERT INTO inbox
    SELECT 'none', $3, $1 || number, '', clock_timestamp() - $2::interval FROM generate_series(1, 25) AS number"""
LEFT_IN_OUTBOX = "SELECT aggregate_id, count(*) FROM outbox WHERE topic = 'none' GROUP BY 1 ORDER BY 1"
LEFT_IN_INBOX = """
    SELECT left(event_id, 3), count(*) FROM inbox WHERE consumer = 'none' AND topic = $1 GROUP BY 1 ORDER BY 1"""
INSERT_PARKED = """
    INSERT INTO parked (topic, partition, "offset", aggregate_id, event_id, headers, reason, detail, blocks, state,
                        resolved_at, record_sha256)
    VALUES ('none', 0, 1, 'none', $1, '{}', '', '', false, 'dropped', clock_timestamp() - $2::interval,
            sha256($1::text::bytea))"""
INSERT_OPEN = """
    INSERT INTO parked (topic, partition, "offset", aggregate_id, event_id, headers, reason, detail, blocks, parked_at)
    VALUES ('none', 0, 2, 'none', 'open', '{}', '', '', false, clock_timestamp() - interval '1 year')"""
INSERT_DROPPED = """
    INSERT INTO dropped_event (id, event_id, topic, aggregate_id, sequence, type, headers, value, created_at, reason,
                               dropped_at)
    VALUES ($1, $1::bigint::text, 'none', 'none', 1, 'None', '{}', '', now(), '', clock_timestamp() - $2::interval)"""
LEFT_IN_PARKED = "SELECT event_id FROM parked WHERE topic = 'none'"
MINUTE = timedelta(minutes=1)


async def test_old_rows_go_a_part_at_a_time(database, db, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(retention, "ROWS_AT_ONCE", 10)
    timing = Timing()
    for name, age in (("old", timing.outbox_retention + MINUTE), ("new", timing.outbox_retention - MINUTE)):
        await db.execute(INSERT_ROWS, name, age)
    await db.execute(HOLD_BACK, "old")

    await prune_kernel(database, timing)

    assert [tuple(row) for row in await db.fetch(LEFT_IN_OUTBOX)] == [("new", 25), ("old", 1)]
    await db.execute("DELETE FROM unpublished WHERE id IN (SELECT id FROM outbox WHERE topic = 'none')")
    await db.execute("DELETE FROM outbox WHERE topic = 'none'")


@pytest.mark.parametrize(
    ("topic", "days"), [("training.events", 30), ("run.metrics", 7), ("tenant.acme.commands", 30)]
)
async def test_the_inbox_knows_what_can_be_read_again(database, db, topic: str, days: int):
    kept = timedelta(days=days + 8)
    await db.execute(INSERT_APPLIED, "old", kept + MINUTE, topic)
    await db.execute(INSERT_APPLIED, "new", kept - MINUTE, topic)
    await prune_kernel(database, Timing())
    assert [tuple(row) for row in await db.fetch(LEFT_IN_INBOX, topic)] == [("new", 25)]
    await db.execute("DELETE FROM inbox WHERE consumer = 'none'")


async def test_what_a_person_has_dealt_with_goes_and_the_rest_stays(database, db):
    await db.execute(INSERT_PARKED, "old", timedelta(days=91))
    await db.execute(INSERT_PARKED, "new", timedelta(days=89))
    await db.execute(INSERT_OPEN)
    await db.execute(INSERT_DROPPED, -1, timedelta(days=91))
    await db.execute(INSERT_DROPPED, -2, timedelta(days=89))
    await prune_kernel(database, Timing())
    assert {row["event_id"] for row in await db.fetch(LEFT_IN_PARKED)} == {"new", "open"}
    assert await db.fetchval("SELECT array_agg(id) FROM dropped_event WHERE topic = 'none'") == [-2]
    for table in ("parked", "dropped_event"):
        await db.execute(f"DELETE FROM {table} WHERE topic = 'none'")
