"""A lease on the database's clock. The epoch rises at every grant and fences earlier holders."""

from datetime import timedelta

from shared.failpoints import failpoint
from shared.postgres.database import Database

# The same owner may take its own lease again at once: owners are unique by construction (service and slot),
# so a restarted process need not wait for the lease of its predecessor to run out.
ACQUIRE = """
    INSERT INTO lease AS l (name, owner, epoch, expires_at) VALUES ($1, $2, 1, clock_timestamp() + $3)
    ON CONFLICT (name) DO UPDATE SET owner = $2, epoch = l.epoch + 1, expires_at = clock_timestamp() + $3
        WHERE l.expires_at < clock_timestamp() OR l.owner = $2
    RETURNING epoch"""

RENEW = """
    UPDATE lease SET expires_at = clock_timestamp() + $4
     WHERE name = $1 AND owner = $2 AND epoch = $3 RETURNING true"""


class Lease:
    def __init__(self, database: Database, name: str, *, owner: str, ttl: timedelta) -> None:
        self._database = database
        self._name = name
        self._owner = owner
        self._ttl = ttl
        self.epoch: int | None = None

    async def hold(self) -> bool:
        """Acquire or renew; whether this process holds the lease now."""
        if self.epoch is not None and await self._renew(self.epoch):
            return True
        self.epoch = await self._database.fetchval(ACQUIRE, self._name, self._owner, self._ttl)
        if self.epoch is not None:
            failpoint("lease.acquired")
        return self.epoch is not None

    async def _renew(self, epoch: int) -> bool:
        renewed = await self._database.fetchval(RENEW, self._name, self._owner, epoch, self._ttl)
        failpoint("lease.renewed" if renewed else "lease.lost")
        return bool(renewed)
