"""How far a long test is: one line, rewritten each second on a terminal, written every ten seconds elsewhere."""

import asyncio
import sys
import time
from collections.abc import Callable
from datetime import timedelta

EVERY_SECONDS = 10


async def report(total_seconds: float, counts: Callable[[], dict[str, int]]) -> None:
    """Until it is canceled."""
    began, is_terminal = time.monotonic(), sys.stdout.isatty()
    every, end = (1, "\r") if is_terminal else (EVERY_SECONDS, "\n")
    while True:
        seconds = time.monotonic() - began
        print(line(seconds, total_seconds, counts()), end=end, flush=True)  # noqa: T201
        await asyncio.sleep(every - seconds % every)


def line(seconds: float, total_seconds: float, counts: dict[str, int]) -> str:
    """Percent, time that has passed and time that is left in whole seconds, and what was counted so far."""
    passed = min(int(seconds), int(total_seconds))
    left = int(total_seconds) - passed
    percent = 100 * passed // max(1, int(total_seconds))
    counted = ", ".join(f"{count} {what}" for what, count in counts.items())
    return f"{percent:3}% {timedelta(seconds=passed)}<{timedelta(seconds=left)} {counted}"
