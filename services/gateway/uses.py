"""Which deployed models are asked for, reported to the serving controller, which keeps those loaded."""

from datetime import timedelta

from schemas.deployment import UseAdapters, UsedSlot
from shared.service import Service

REPORT_EVERY = timedelta(seconds=30)
REPORT_AWAITED_EVERY = timedelta(seconds=1)
MOST = 500
"""Most slots in one message; of more, those asked for last are named."""

Slot = tuple[str, str]
"""Tenant, name."""


class Uses:
    """Slots that were asked for, in memory: one that is lost was used a moment ago, or is asked for again."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._used: dict[Slot, None] = {}
        self._awaited: dict[Slot, None] = {}

    def register(self) -> None:
        self._service.every(REPORT_EVERY, self.report)
        self._service.every(REPORT_AWAITED_EVERY, self.report_awaited)

    def note(self, tenant: str, slot: str) -> None:
        """A request for it goes to a replica."""
        _put_last(self._used, (tenant, slot))

    def wait_for(self, tenant: str, slot: str) -> None:
        """A request for it waits until it is loaded."""
        _put_last(self._awaited, (tenant, slot))

    async def report(self) -> None:
        self._used, used = {}, self._used
        await self._report(used)

    async def report_awaited(self) -> None:
        self._awaited, awaited = {}, self._awaited
        await self._report(awaited)

    async def _report(self, slots: dict[Slot, None]) -> None:
        if not slots:
            return
        used = tuple(UsedSlot(tenant=tenant, slot=slot) for tenant, slot in slots)
        async with self._service.unit() as unit:
            await unit.emit(UseAdapters(reporter="gateway", slots=used))


def _put_last(slots: dict[Slot, None], slot: Slot) -> None:
    slots.pop(slot, None)
    slots[slot] = None
    if len(slots) > MOST:
        del slots[next(iter(slots))]
