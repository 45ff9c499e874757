"""What sleeps until it is poked wakes, and stops when it is told to."""

import asyncio

import pytest

from shared.messaging.poke import until_poked

LONG_SECONDS = 60.0


async def test_a_poke_wakes_all_and_is_used_up():
    poked = asyncio.Event()
    waiting = [asyncio.create_task(until_poked(poked, at_most_seconds=LONG_SECONDS)) for _ in range(3)]
    await asyncio.sleep(0)
    poked.set()
    async with asyncio.timeout(5):
        await asyncio.gather(*waiting)
    assert not poked.is_set()


async def test_the_time_ends_it_as_well():
    await until_poked(asyncio.Event(), at_most_seconds=0.01)


@pytest.mark.parametrize("turns", range(5))
async def test_a_stop_that_comes_with_a_poke_is_obeyed(turns):
    poked = asyncio.Event()

    async def loop() -> None:
        while True:
            await until_poked(poked, at_most_seconds=LONG_SECONDS)

    running = asyncio.create_task(loop())
    await asyncio.sleep(0.01)
    poked.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    running.cancel()
    try:
        await asyncio.wait({running}, timeout=1)
        assert running.cancelled(), f"it goes on, stopped {turns} turns of the loop after the poke"
    finally:
        running.cancel()
