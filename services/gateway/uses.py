"""Which deployed models are asked for: told to the serving controller, which keeps those loaded."""

from datetime import timedelta

from schemas.deployment import UseAdapters, UsedSlot
from shared.service import Service

TELL_EVERY = timedelta(seconds=30)
TELL_AWAITED_EVERY = timedelta(seconds=1)
MOST = 500
"""In one message; of more, those asked for last."""

Slot = tuple[str, str]
"""Tenant, name."""


class Uses:
    """In memory: what is lost with the process was used a moment ago, or is asked for again."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._used: dict[Slot, None] = {}
        self._awaited: dict[Slot, None] = {}

    def register(self) -> None:
        self._service.every(TELL_EVERY, self.tell)
        self._service.every(TELL_AWAITED_EVERY, self.tell_awaited)

    def note(self, tenant: str, slot: str) -> None:
        """A request for it goes to a replica."""
        _put_last(self._used, (tenant, slot))

    def wait_for(self, tenant: str, slot: str) -> None:
        """A request for it waits until it is loaded."""
        _put_last(self._awaited, (tenant, slot))

    async def tell(self) -> None:
        self._used, used = {}, self._used
        await self._tell(used)

    async def tell_awaited(self) -> None:
        self._awaited, awaited = {}, self._awaited
        await self._tell(awaited)

    async def _tell(self, slots: dict[Slot, None]) -> None:
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
