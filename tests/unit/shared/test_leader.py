"""What a leader's loops undo when the process stops is not interrupted again."""

import asyncio
from datetime import timedelta

from shared.messaging.leader import Leader


class Held:
    token = 1

    async def hold(self) -> bool:
        return True

    async def renew(self) -> bool:
        return True

    async def release(self) -> bool:
        return True


class Loop:
    """Takes some turns of the event loop to roll back."""

    def __init__(self, turns: int) -> None:
        self._turns = turns
        self.cancelled = 0
        self.begun = asyncio.Event()

    async def __call__(self) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled += 1
            for _ in range(self._turns):
                try:
                    await asyncio.sleep(0)
                except asyncio.CancelledError:
                    self.cancelled += 1


async def test_each_loop_is_cancelled_once():
    leader = Leader(Held(), ttl=timedelta(seconds=60), renew=timedelta(seconds=20))
    loops = [Loop(turns=0), Loop(turns=50)]
    leader.loops.extend(loops)
    leading = asyncio.create_task(leader.run())
    await asyncio.gather(*(loop.begun.wait() for loop in loops))
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)
    assert [loop.cancelled for loop in loops] == [1, 1]
