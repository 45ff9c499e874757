"""A lease that runs on the database's clock. Its token rises at every grant and fences earlier holders."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

from shared.failpoints import failpoint
from shared.log import get_logger
from shared.postgres.database import Connection, Database, is_unavailable

log = get_logger(__name__)

Result = TypeVar("Result")

RENEW_AGAIN_SECONDS = 0.5
"""Pause after a renewal that Postgres did not answer."""
MARGIN = 0.1
"""Share of a lease's time that is not used, so that work ends before that of another process can begin."""

# The same owner may take its own lease again at once: owners are unique by construction (service and instance),
# so a restarted process need not wait for the lease of its predecessor to run out.
ACQUIRE = """
    INSERT INTO lease AS l (name, owner, token, expires_at) VALUES ($1, $2, 1, clock_timestamp() + $3)
    ON CONFLICT (name) DO UPDATE SET owner = $2, token = l.token + 1, expires_at = clock_timestamp() + $3
        WHERE l.expires_at < clock_timestamp() OR l.owner = $2
    RETURNING token"""

RENEW = """
    UPDATE lease SET expires_at = clock_timestamp() + $4
     WHERE name = $1 AND owner = $2 AND token = $3 RETURNING true"""

# The row is locked in share mode: another acquirer of the lease waits until the transaction has ended.
REQUIRE = "SELECT true FROM lease WHERE name = $1 AND owner = $2 AND token = $3 FOR SHARE"

RELEASE = """
    UPDATE lease SET expires_at = clock_timestamp() WHERE name = $1 AND owner = $2 AND token = $3 RETURNING true"""


class LeaseLost(Exception):
    """Another process may have taken over; this one's work under the lease is dropped."""


class Lease:
    def __init__(self, database: Database, name: str, *, owner: str, ttl: timedelta) -> None:
        self._database = database
        self._name = name
        self._owner = owner
        self._ttl = ttl
        self.token: int | None = None

    async def hold(self) -> bool:
        """Acquire or renew the lease; return whether this process holds it now."""
        if self.token is not None and await self._renew(self.token):
            return True
        self.token = await self._database.fetchval(ACQUIRE, self._name, self._owner, self._ttl)
        if self.token is not None:
            failpoint("lease.acquired")
        return self.token is not None

    async def renew(self) -> bool:
        """Renew the lease; return whether this process held it all the time."""
        return self.token is not None and await self._renew(self.token)

    async def require(self, conn: Connection) -> None:
        """Keep the lease from other owners until the transaction ends. Raises LeaseLost if one of them has it."""
        if not await conn.fetchval(REQUIRE, self._name, self._owner, self.token):
            raise LeaseLost(f"lease {self._name} of {self._owner}, token {self.token}")

    async def release(self) -> bool:
        """Let another process have the lease before it expires; return whether this one still held it."""
        return bool(await self._database.fetchval(RELEASE, self._name, self._owner, self.token))

    async def _renew(self, token: int) -> bool:
        renewed = await self._database.fetchval(RENEW, self._name, self._owner, token, self._ttl)
        failpoint("lease.renewed" if renewed else "lease.lost")
        return bool(renewed)


async def under_lease(
    work: Awaitable[Result],
    renew: Callable[[], Awaitable[bool]],
    *,
    granted_at: float,
    ttl: timedelta,
    pause: timedelta,
) -> Result:
    """Return the result of the work, renewing its lease meanwhile. Cancels it and raises LeaseLost if that is lost.

    `granted_at` is on the monotonic clock, taken before the lease was asked for.
    """
    running = asyncio.ensure_future(work)
    ttl_seconds, pause_seconds = ttl.total_seconds() * (1 - MARGIN), pause.total_seconds()
    holds_until = granted_at + ttl_seconds
    try:
        while not running.done():
            await asyncio.wait({running}, timeout=min(pause_seconds, holds_until - time.monotonic()))
            if not running.done():
                renewed_until = await _renewed_until(renew, holds_until, ttl_seconds)
                has_renewed = renewed_until != holds_until
                pause_seconds = pause.total_seconds() if has_renewed else RENEW_AGAIN_SECONDS
                holds_until = renewed_until
        return running.result()
    finally:
        if not running.done():
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def _renewed_until(
    renew: Callable[[], Awaitable[bool]], holds_until: float, ttl_seconds: float
) -> float:
    """Renew; return the new end, or the old one if Postgres is unavailable. Raises LeaseLost if the lease is lost."""
    asked_at = time.monotonic()
    try:
        async with asyncio.timeout(max(holds_until - asked_at, RENEW_AGAIN_SECONDS)):
            is_held = await renew()
    except Exception as error:
        if not is_unavailable(error):
            raise
        text = f"{type(error).__name__}: {error}"
        log.warning("lease is not renewed", seconds_left=round(holds_until - asked_at, 1), error=text)
        if time.monotonic() >= holds_until:
            raise LeaseLost from error
        return holds_until
    if not is_held:
        raise LeaseLost
    return asked_at + ttl_seconds
