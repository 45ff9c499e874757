"""Rows of an outbox that were set aside: which there are, sending them again, and leaving one out."""

from typing import Any

from shared.postgres.database import Database

LIST = """
    SELECT set_aside.id, topic, aggregate_id, sequence, type, octet_length(value) AS bytes, detail, set_aside_at
      FROM {service}.set_aside JOIN {service}.outbox USING (id, topic, aggregate_id) ORDER BY id"""
OF_SAME_AGGREGATE = """
    SELECT same.id, same.detail
      FROM {service}.set_aside AS row JOIN {service}.set_aside AS same USING (topic, aggregate_id)
     WHERE row.id = $1 ORDER BY same.id"""
REPUBLISH = "SELECT {service}.republish($1)"
DROP = "SELECT {service}.drop_set_aside($1, $2)"


async def list_set_aside(database: Database, service: str) -> list[Any]:
    return list(await database.fetch(LIST.format(service=service)))


async def send(database: Database, service: str, row_id: int) -> list[int]:
    """Have the relay send the row with the others of its aggregate; their ids, none where it is not set aside."""
    rows = await database.fetch(OF_SAME_AGGREGATE.format(service=service), row_id)
    ids = [row["id"] for row in rows]
    if ids:
        await database.fetchval(REPUBLISH.format(service=service), ids)
    return ids


async def refusal_of(database: Database, service: str, row_id: int) -> str | None:
    """Why the row is set aside; None where it is not."""
    rows = await database.fetch(OF_SAME_AGGREGATE.format(service=service), row_id)
    return next((str(row["detail"]) for row in rows if row["id"] == row_id), None)


async def drop(database: Database, service: str, row_id: int, *, reason: str) -> int | None:
    """Leave the row out for good; how many behind it are sent now, None where it is not set aside."""
    released: int | None = await database.fetchval(DROP.format(service=service), row_id, reason)
    return released
