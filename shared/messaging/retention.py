"""Old rows of the kernel's tables. Long enough that Kafka can be repaired from the outbox."""

from datetime import timedelta

from shared.failpoints import failpoint
from shared.postgres.database import Database
from shared.settings import Timing

ROWS_AT_ONCE = 10_000
"""Millions in one statement would take longer than a statement may."""

PRUNE_OUTBOX = """
    DELETE FROM outbox WHERE id = ANY(ARRAY(
        SELECT id FROM outbox WHERE created_at < now() - $1::interval
           AND NOT EXISTS (SELECT FROM unpublished WHERE unpublished.id = outbox.id) LIMIT $2))"""
PRUNE_INBOX = """
    DELETE FROM inbox WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM inbox WHERE applied_at < now() - $1::interval LIMIT $2))"""


async def prune_kernel(database: Database, timing: Timing) -> None:
    await _prune(database, PRUNE_OUTBOX, timing.outbox_retention)
    await _prune(database, PRUNE_INBOX, timing.inbox_retention)
    failpoint("gc.deleted")


async def _prune(database: Database, query: str, older_than: timedelta) -> None:
    while await database.execute(query, older_than, ROWS_AT_ONCE) == f"DELETE {ROWS_AT_ONCE}":
        pass
