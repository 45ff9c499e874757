"""How a backend that sends no news is watched."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable

from services.provisioner.backends.protocol import AttemptStatus


async def poll(
    list_owned: Callable[[], Awaitable[list[AttemptStatus]]], *, period_seconds: float, resync_polls: int
) -> AsyncIterator[AttemptStatus]:
    """Yield statuses as they change, and all of them every `resync_polls` polls; without end."""
    seen: dict[str, AttemptStatus] = {}
    for number in itertools.count():
        statuses = {status.name: status for status in await list_owned()}
        for name, status in statuses.items():
            if seen.get(name) != status or number % resync_polls == 0:
                yield status
        seen = statuses
        await asyncio.sleep(period_seconds)
