"""Rows of an outbox that were set aside: which there are, sending them again, and leaving one out."""

from typing import Any

import asyncpg

from ops.errors import RefusedByPlatform
from ops.relay.outbox import publishers, republish, wait_until_sent
from shared.postgres.database import Database

LIST = """
    SELECT set_aside.id, topic, aggregate_id, sequence, type, octet_length(value) AS bytes, detail, set_aside_at
      FROM {service}.set_aside JOIN {service}.outbox USING (id, topic, aggregate_id) ORDER BY id"""
OF_SAME_AGGREGATE = """
    SELECT same.id, same.detail
      FROM {service}.set_aside AS row JOIN {service}.set_aside AS same USING (topic, aggregate_id)
     WHERE row.id = $1 ORDER BY same.id"""
DROP = "SELECT {service}.drop_set_aside($1, $2)"
LATER_ARE_PUBLISHED = "RT001"
"""What `drop_set_aside` raises."""


async def list_set_aside(database: Database, service: str) -> list[dict[str, Any]]:
    return [
        {"service": name, **row}
        for name in await publishers(database, service)
        for row in await database.fetch(LIST.format(service=name))
    ]


async def send(database: Database, service: str, row_id: int) -> int:
    """Have the relay send the row with the others of its aggregate; how many they are.

    Raises RefusedByPlatform where the row is not set aside, or is again.
    """
    details = await _details(database, service, row_id)
    if row_id not in details:
        raise _not_set_aside(service, row_id)
    await republish(database, service, list(details))
    await wait_until_sent(database, service, list(details))
    if (detail := (await _details(database, service, row_id)).get(row_id)) is not None:
        raise RefusedByPlatform(f"{service} {row_id}: set aside again: {detail}")
    return len(details)


async def drop(database: Database, service: str, row_id: int, *, reason: str) -> int:
    """Leave the row out for good; how many behind it are sent now. Raises RefusedByPlatform."""
    try:
        released: int | None = await database.fetchval(DROP.format(service=service), row_id, reason)
    except asyncpg.PostgresError as error:
        if error.sqlstate != LATER_ARE_PUBLISHED:
            raise
        raise RefusedByPlatform(f"{service} {row_id}: {error}") from error
    if released is None:
        raise _not_set_aside(service, row_id)
    return released


async def _details(database: Database, service: str, row_id: int) -> dict[int, str]:
    """Why the row and the others of its aggregate are set aside, by id; empty where the row is not."""
    rows = await database.fetch(OF_SAME_AGGREGATE.format(service=service), row_id)
    return {row["id"]: str(row["detail"]) for row in rows}


def _not_set_aside(service: str, row_id: int) -> RefusedByPlatform:
    return RefusedByPlatform(f"{service} has no row {row_id} set aside; see `retune relay set-aside`")
