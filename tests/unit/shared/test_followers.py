"""However often the loop is woken, it reads every event stream with a parked message once in a while only."""

import asyncio
from typing import Any

from shared.messaging import followers
from shared.messaging.followers import Followers


class Nothing:
    """A database in which no parked message is due."""

    def __init__(self) -> None:
        self.asked = 0

    async def fetch(self, query: str) -> list[Any]:
        self.asked += 1
        return []


async def test_a_wake_within_the_rest_causes_no_look(monkeypatch):
    monkeypatch.setattr(followers, "REST_SECONDS", 3600.0)
    nothing: Any = Nothing()
    loop = Followers("tracker", nothing, None, wake=lambda: None)
    running = asyncio.create_task(loop.run())
    for _ in range(50):
        loop.wake_event.set()
        await asyncio.sleep(0)
    assert (nothing.asked, running.done()) == (1, False)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
