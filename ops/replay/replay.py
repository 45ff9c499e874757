"""`retune replay`: the records of a selection once more, counted and given to a target."""

from ops.replay import targets
from ops.replay.selection import Selection
from ops.replay.targets import Counting
from shared.clock import utc_now
from shared.messaging.login import Login


async def replay(login: Login, selection: Selection, to: str) -> tuple[Counting, str]:
    """The counts, and what was done with the records. Nothing is sent unless all may be: RefusedByPlatform."""
    if targets.sends_to_topic(to):
        targets.require_sendable(to, selection)
        async for record in selection.read(login):
            targets.admit(record, now=utc_now())
    counts = Counting()
    async with targets.opened(to, login) as target:
        async for record in selection.read(login):
            await counts.take(record)
            await target.take(record)
    return counts, target.outcome
