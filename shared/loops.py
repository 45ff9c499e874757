"""The loops of a process: repeated, started, and ended together; an error in one of them ends the process."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

from shared.log import get_logger
from shared.messaging.kafka import KafkaFailed
from shared.messaging.kafka_health import ClientUnresponsive
from shared.messaging.lease import LeaseLost
from shared.postgres.database import is_unavailable

log = get_logger(__name__)

Loop = Callable[[], Awaitable[None]]


async def repeat(period: timedelta, function: Loop) -> None:
    """Call the function once in each period, until cancelled; what it raises is logged, and it is called again.

    Raises ClientUnresponsive and LeaseLost.
    """
    while True:
        began = time.monotonic()
        try:
            await function()
        except (ClientUnresponsive, LeaseLost):
            raise
        except Exception as error:
            if is_unavailable(error) or isinstance(error, KafkaFailed):
                log.warning(
                    "loop waits", loop=function.__qualname__, error=f"{type(error).__name__}: {error}"
                )
            else:
                log.exception("loop failed", loop=function.__qualname__)
        await asyncio.sleep(max(0.0, period.total_seconds() - (time.monotonic() - began)))


def start(name: str, loop: Loop) -> asyncio.Task[None]:
    """Run the loop in a task whose error ends the process."""
    return asyncio.create_task(_exit_on_error(name, loop))


async def _exit_on_error(name: str, loop: Loop) -> None:
    try:
        await loop()
    except Exception as error:
        exit_process(name, error)


def exit_process(where: str, error: BaseException) -> None:
    log.error("process ends", where=where, exc_info=error)
    os._exit(1)


async def cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel the tasks and wait until each of them has ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
