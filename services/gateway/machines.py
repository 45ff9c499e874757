"""Machines of pools as `node.events` tell of them: which are held, by what, and which take no work."""

from datetime import datetime

from schemas.node import AllocatedNode
from services.gateway.model import Row
from services.gateway.store import select
from shared.postgres.database import Database

MOST_HELD = 5_000
"""Attempts with nodes that are read."""
HELD = f"""
    SELECT job.job_id, job.tenant, (event.data ->> 'attempt')::int AS attempt, event.data ->> 'pool' AS pool,
           event.data -> 'nodes' AS nodes
      FROM job JOIN LATERAL (SELECT data FROM job_event
                              WHERE job_event.job_id = job.job_id AND type = 'NodesProvisioned'
                              ORDER BY id DESC LIMIT 1) AS event ON true
     WHERE held_since IS NOT NULL ORDER BY held_since, job.job_id LIMIT {MOST_HELD}"""
CORDONS = (
    "SELECT pool, machine, source, reason, changed_at FROM cordon WHERE NOT is_lifted ORDER BY pool, machine"
)


class HeldNodes(Row):
    """Nodes of the newest attempt of a job, which have not all been given back."""

    job_id: str
    tenant: str
    attempt: int
    pool: str
    nodes: tuple[AllocatedNode, ...]


class Cordon(Row):
    """Why a machine takes no work."""

    pool: str
    machine: str
    source: str
    reason: str
    changed_at: datetime


async def list_held(database: Database) -> list[HeldNodes]:
    """Return who holds nodes, longest first."""
    return await select(HeldNodes, database, HELD)


async def list_cordons(database: Database) -> list[Cordon]:
    return await select(Cordon, database, CORDONS)
