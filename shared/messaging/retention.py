"""Deletion of old rows from the kernel's tables and those that a service names; docs/retention.md lists all."""

from dataclasses import dataclass
from datetime import timedelta

from schemas.topics import TOPICS
from shared.failpoints import failpoint
from shared.messaging.delivery import topic_named
from shared.postgres.database import Database
from shared.settings import Timing

ROWS_AT_ONCE = 10_000
"""Rows deleted per statement; millions in one would exceed the time limit of a statement."""

# The outbox is kept long enough that Kafka can be repaired from it.
PRUNE_OUTBOX = """
    DELETE FROM outbox WHERE id = ANY(ARRAY(
        SELECT id FROM outbox WHERE created_at < now() - $1::interval
           AND NOT EXISTS (SELECT FROM unpublished WHERE unpublished.id = outbox.id)
           AND NOT EXISTS (SELECT FROM set_aside WHERE set_aside.id = outbox.id) LIMIT $2))"""
PRUNE_INBOX = """
    DELETE FROM inbox WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM inbox WHERE topic = $3 AND applied_at < now() - $1::interval LIMIT $2))"""
TOPICS_OF_INBOX = """
    WITH RECURSIVE topics AS (
        (SELECT topic FROM inbox ORDER BY topic LIMIT 1)
        UNION ALL
        SELECT following.topic FROM topics CROSS JOIN LATERAL (
            SELECT topic FROM inbox WHERE topic > topics.topic ORDER BY topic LIMIT 1) AS following)
    SELECT topic FROM topics"""
PRUNE_PARKED = """
    DELETE FROM parked WHERE id = ANY(ARRAY(
        SELECT id FROM parked WHERE resolved_at < now() - $1::interval LIMIT $2))"""
PRUNE_DROPPED = """
    DELETE FROM dropped_event WHERE id = ANY(ARRAY(
        SELECT id FROM dropped_event WHERE dropped_at < now() - $1::interval LIMIT $2))"""
PRUNE_TURNS = """
    DELETE FROM turn WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM turn WHERE served_at < now() - $1::interval LIMIT $2))"""


@dataclass(frozen=True)
class Pruning:
    """Retention of a table that belongs to a service."""

    query: str
    """Statement that deletes rows older than $1, at most $2 of them."""
    older_than: timedelta


def inbox_kept(topic: str, timing: Timing) -> timedelta:
    """Return how long a record of the topic may be read again; until then its inbox row marks it as a duplicate."""
    try:
        days = topic_named(topic).retention_days
    except KeyError:  # a topic of an earlier release
        days = max(each.retention_days for each in TOPICS)
    return timedelta(days=days) + timing.segment_age


async def prune_kernel(database: Database, timing: Timing) -> None:
    await prune(database, Pruning(PRUNE_OUTBOX, timing.outbox_retention))
    for row in await database.fetch(TOPICS_OF_INBOX):
        topic = row["topic"]
        await prune(database, Pruning(PRUNE_INBOX, inbox_kept(topic, timing)), topic)
    await prune(database, Pruning(PRUNE_PARKED, timing.resolved_retention))
    await prune(database, Pruning(PRUNE_DROPPED, timing.resolved_retention))
    await prune(database, Pruning(PRUNE_TURNS, timing.turn_retention))
    failpoint("gc.deleted")


async def prune(database: Database, pruning: Pruning, *args: object) -> None:
    deleted = f"DELETE {ROWS_AT_ONCE}"
    while deleted == f"DELETE {ROWS_AT_ONCE}":
        deleted = await database.execute(pruning.query, pruning.older_than, ROWS_AT_ONCE, *args)
