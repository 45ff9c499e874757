"""Election of the one process of a service that runs its singleton loops, under one lease for all of them."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from datetime import timedelta

from shared.log import get_logger
from shared.messaging.lease import Lease, LeaseLost, under_lease
from shared.messaging.tasks import unavailable_dependency
from shared.postgres.database import Connection, false_if_unavailable

log = get_logger(__name__)

RELEASE_SECONDS = 1.0
"""Time for giving the lease back to Postgres; after that it is left to expire."""

Loop = Callable[[], Awaitable[None]]

_lease: ContextVar[Lease | None] = ContextVar("lease", default=None)
"""The lease of the current loop and of the tasks that it started."""


async def require_lead(conn: Connection) -> None:
    """Raise LeaseLost, in a singleton loop, unless this process leads now and until the commit."""
    if lease := _lease.get():
        await lease.require(conn)


class Leader:
    def __init__(self, lease: Lease, *, ttl: timedelta, renew: timedelta) -> None:
        self._lease = lease
        self._ttl = ttl
        self._renew = renew
        self.loops: list[Loop] = []
        """Functions that each run until they are cancelled."""
        self.begin_hooks: list[Loop] = []
        self.end_hooks: list[Loop] = []

    async def run(self) -> None:
        """Lead whenever the lease can be held, until cancelled."""
        while self.loops:
            asked_at = time.monotonic()
            if await false_if_unavailable(self._lease.hold()):
                await self._lead(asked_at)
            await asyncio.sleep(self._renew.total_seconds())

    async def _lead(self, asked_at: float) -> None:
        """Run the loops until the lease is lost or something that they depend on is unavailable."""
        log.info("process leads", token=self._lease.token)
        try:
            await under_lease(
                self._term(), self._lease.renew, granted_at=asked_at, ttl=self._ttl, pause=self._renew
            )
        except LeaseLost:
            log.warning("process leads no more", token=self._lease.token)
        except asyncio.CancelledError:
            await self._release()
            raise
        except Exception as error:
            if unavailable_dependency(error) is None:
                raise
            log.warning("process cannot lead yet", error=f"{type(error).__name__}: {error}")

    async def _term(self) -> None:
        _lease.set(self._lease)
        try:
            await _call(self.begin_hooks)
            await _until_one_ends(self.loops)
        finally:
            await _call(self.end_hooks)

    async def _release(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RELEASE_SECONDS):
                await false_if_unavailable(self._lease.release())


async def _call(hooks: Sequence[Loop]) -> None:
    for hook in hooks:
        await hook()


async def _until_one_ends(loops: Sequence[Loop]) -> None:
    """Raise the first error of a loop; the others are cancelled once, for their cleanup must not be interrupted."""
    tasks = [asyncio.ensure_future(loop()) for loop in loops]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
