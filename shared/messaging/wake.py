"""Sleeping of loops until there is something to do, or for as long as they may miss it."""

import asyncio
import contextlib

WITHOUT_A_WAKE_SECONDS = 10.0
"""A loop looks on its own after so long, in case that a wake was lost."""


async def wait_for_wake(wake_event: asyncio.Event, *, at_most_seconds: float) -> None:
    """Return when the event is set or the time is over. A cancellation that comes together with the wake is kept.

    `asyncio.wait_for` of Python 3.11 drops such a cancellation, and the loop would run for ever.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(at_most_seconds):
            await wake_event.wait()
    wake_event.clear()
