"""Checks whether Postgres is unavailable, which is waited for, or only fails for one statement."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

from shared.log import get_logger
from shared.postgres.database import Database, is_unavailable, may_be_its_own
from shared.retry import RetryPolicy

log = get_logger(__name__)

Result = TypeVar("Result")


class Overdue(Exception):
    """Postgres takes the writes of others, but this call repeatedly did not end in time."""


async def is_outage(error: BaseException, database: Database) -> bool:
    """Return whether the error is due to a Postgres that no client can use, and not to the statement that met it."""
    return is_unavailable(error) and not (may_be_its_own(error) and await database.takes_writes())


async def retry_through_outage(
    call: Callable[[], Awaitable[Result]], database: Database, *, retry_policy: RetryPolicy
) -> Result:
    """Return the result of the call once Postgres is available, however long that takes. Other errors are raised.

    Raises Overdue if Postgres takes writes and the call still meets locks or time limits, for the limit of
    `retry_policy` without a break.
    """
    away_since = overdue_since = None
    while True:
        began = time.monotonic()
        try:
            return await call()
        except Exception as error:
            if not is_unavailable(error):
                raise
            text = f"{type(error).__name__}: {error}"
            is_its_own = not await is_outage(error, database)
            now = time.monotonic()
            away_since = began if away_since is None else away_since
            overdue_since = (began if overdue_since is None else overdue_since) if is_its_own else None
            if overdue_since is not None and now - overdue_since >= retry_policy.limit.total_seconds():
                raise Overdue(f"not done within {now - overdue_since:.0f} s: {text}") from error
            log.warning("waits for Postgres", error=text, away_for=round(now - away_since, 1))
        await asyncio.sleep(retry_policy.pause(timedelta(seconds=now - away_since)).total_seconds())
