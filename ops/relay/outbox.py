"""The outboxes of the services, in which the relay finds what it sends."""

import asyncio
import time
from collections.abc import Sequence

from ops.errors import RefusedByPlatform, Unreachable
from schemas.topics import READERS, SERVICES
from shared.postgres.database import Database

ALL = "all"
PUBLISHERS = tuple(service for service in SERVICES if service not in READERS)
SEND_SECONDS = 60.0
POLL_SECONDS = 0.2
HAS_OUTBOX = "SELECT to_regclass($1) IS NOT NULL"
REPUBLISH = "SELECT {service}.republish($1)"
UNSENT = "SELECT count(*) FROM {service}.unpublished WHERE id = ANY($1)"


async def publishers(database: Database, service: str) -> list[str]:
    """The service, or all that have tables: a stack need not run them all. Raises RefusedByPlatform if none has."""
    names = PUBLISHERS if service == ALL else (service,)
    services = [name for name in names if await database.fetchval(HAS_OUTBOX, f"{name}.outbox")]
    if not services:
        raise RefusedByPlatform(f"{service}: found no outbox; its tables were never set up here")
    return services


async def republish(database: Database, service: str, ids: Sequence[int]) -> int:
    """Have the service's own relay send these rows again; how many they are."""
    count: int = await database.fetchval(REPUBLISH.format(service=service), list(ids))
    return count


async def wait_until_sent(database: Database, service: str, ids: Sequence[int]) -> None:
    """Raises Unreachable after SEND_SECONDS."""
    began = time.monotonic()
    while unsent := await database.fetchval(UNSENT.format(service=service), list(ids)):
        if time.monotonic() - began > SEND_SECONDS:
            raise Unreachable(
                f"{service} has not sent {unsent} rows within {SEND_SECONDS:g} s; they stay in its outbox: "
                "does its relay run? `retune status`"
            )
        await asyncio.sleep(POLL_SECONDS)
