"""Calls of the object store that wait while it is away."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

from shared.errors import StorageUnavailable
from shared.retry import RetryPolicy, retry_until_available

Result = TypeVar("Result")

ENDLESS = RetryPolicy(limit=timedelta.max, longest=timedelta(seconds=5))
"""Policy that retries without end: whoever cannot wait so long cancels."""


def is_storage_away(error: Exception) -> bool:
    return isinstance(error, StorageUnavailable)


async def until_stored(call: Callable[[], Awaitable[Result]]) -> Result:
    return await retry_until_available(call, is_away=is_storage_away, retry_policy=ENDLESS)
