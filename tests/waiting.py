"""How tests wait: for a condition, never for a time."""

import asyncio
import inspect
import os
import time
from collections.abc import Callable
from typing import Any

PATIENCE_SECONDS = float(os.environ.get("PATIENCE_SECONDS", "300"))
"""Limit for what never comes. What a quiet machine does in 5 s takes a slow one a minute within a whole run.

Set it in the environment to see a broken test fail sooner.
"""


async def until(
    condition: Callable[[], Any],
    what: str = "the condition",
    *,
    seconds: float = PATIENCE_SECONDS,
    every: float = 0.02,
) -> Any:
    """Return what the condition, which may be a query, gives once that is true."""
    deadline = time.monotonic() + seconds
    while True:
        result = condition()
        if result := await result if inspect.isawaitable(result) else result:
            return result
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        await asyncio.sleep(every)
