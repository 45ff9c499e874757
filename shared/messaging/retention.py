"""Old rows of the kernel's tables. Long enough that Kafka can be repaired from the outbox."""

from shared.failpoints import failpoint
from shared.postgres.database import Database
from shared.settings import Timing

PRUNE_OUTBOX = "DELETE FROM outbox WHERE published_at < clock_timestamp() - $1::interval"
PRUNE_INBOX = "DELETE FROM inbox WHERE applied_at < clock_timestamp() - $1::interval"


async def prune_kernel(database: Database, timing: Timing) -> None:
    await database.execute(PRUNE_OUTBOX, timing.outbox_retention)
    await database.execute(PRUNE_INBOX, timing.inbox_retention)
    failpoint("gc.deleted")
