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
    SELECT 'none', 'none', $1 || number, '', clock_timestamp() - $2::interval FROM generate_series(1, 25) AS number"""
LEFT_IN_OUTBOX = "SELECT aggregate_id, count(*) FROM outbox WHERE topic = 'none' GROUP BY 1 ORDER BY 1"
LEFT_IN_INBOX = "SELECT left(event_id, 3), count(*) FROM inbox WHERE topic = 'none' GROUP BY 1 ORDER BY 1"
FORGET = "DELETE FROM {} WHERE topic = 'none'"


async def test_old_rows_go_a_part_at_a_time(database, db, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(retention, "ROWS_AT_ONCE", 10)
    timing, minute = Timing(), timedelta(minutes=1)
    for name, age in (("old", timing.outbox_retention + minute), ("new", timing.outbox_retention - minute)):
        await db.execute(INSERT_ROWS, name, age)
    await db.execute(HOLD_BACK, "old")
    for name, age in (("old", timing.inbox_retention + minute), ("new", timing.inbox_retention - minute)):
        await db.execute(INSERT_APPLIED, name, age)

    await prune_kernel(database, timing)

    assert [tuple(row) for row in await db.fetch(LEFT_IN_OUTBOX)] == [("new", 25), ("old", 1)]
    assert [tuple(row) for row in await db.fetch(LEFT_IN_INBOX)] == [("new", 25)]
    await db.execute("DELETE FROM unpublished WHERE id IN (SELECT id FROM outbox WHERE topic = 'none')")
    for table in ("outbox", "inbox"):
        await db.execute(FORGET.format(table))
