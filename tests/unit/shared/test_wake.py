"""A loop that sleeps until it is woken wakes, and stops when it is cancelled."""

import asyncio

import pytest

from shared.messaging.wake import wait_for_wake
from tests.waiting import PATIENCE_SECONDS

LONG_SECONDS = 60.0


async def test_a_wake_reaches_all_and_is_used_up():
    wake_event = asyncio.Event()
    waiting = [asyncio.create_task(wait_for_wake(wake_event, at_most_seconds=LONG_SECONDS)) for _ in range(3)]
    await asyncio.sleep(0)
    wake_event.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*waiting)
    assert not wake_event.is_set()


async def test_the_time_ends_it_as_well():
    await wait_for_wake(asyncio.Event(), at_most_seconds=0.01)


@pytest.mark.parametrize("turns", range(5))
async def test_a_stop_that_comes_with_a_wake_is_obeyed(turns):
    wake_event = asyncio.Event()

    async def loop() -> None:
        while True:
            await wait_for_wake(wake_event, at_most_seconds=LONG_SECONDS)

    running = asyncio.create_task(loop())
    await asyncio.sleep(0.01)
    wake_event.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    running.cancel()
    try:
        await asyncio.wait({running}, timeout=1)
        assert running.cancelled(), f"it continues, stopped {turns} turns of the loop after the wake"
    finally:
        running.cancel()
