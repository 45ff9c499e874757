"""Machines as the provisioner shows them to operators: what runs there, which take no work, how often each failed."""

from collections.abc import Mapping, Sequence
from typing import Any

from ops.clients import postgres
from ops.connection import Connection

MACHINES = """
    SELECT pool, machine, state, devices_in_use, jobs, failures, counted_failures, counted_jobs,
           cordoned_by, cordoned_at, reason
      FROM provisioner.operator_machine ORDER BY pool, machine"""

FAILURES = """
    SELECT failed_at, pool, machine, devices, job_id, attempt, lease_id, holder, kind, message
      FROM provisioner.operator_machine_failure
     WHERE ($1::text IS NULL OR pool = $1) AND ($2::text IS NULL OR machine = $2)
     ORDER BY failed_at DESC, node_id LIMIT $3"""

Row = Mapping[str, Any]


async def list_machines(connection: Connection) -> Sequence[Row]:
    """Return the machines that nodes are on, and those that are cordoned."""
    return await _read(connection, MACHINES)


async def list_failures(
    connection: Connection, *, pool: str | None, machine: str | None, limit: int
) -> Sequence[Row]:
    """Return the newest failures, of one pool or machine where it is named."""
    return await _read(connection, FAILURES, pool, machine, limit)


async def _read(connection: Connection, query: str, *values: object) -> Sequence[Row]:
    async with postgres(connection, application="retune-nodes") as database:
        return [dict(row) for row in await database.fetch(query, *values)]
