"""What the scheduler does from time to time, without a message: looks at its queue, and what is reported of it."""

import time
from datetime import UTC, datetime, timedelta

from services.scheduler import queue_store, store
from services.scheduler.decide import overdue
from services.scheduler.decide.decision import Policy
from services.scheduler.handlers import Announced, Handlers, Since
from shared.loops import Loop
from shared.messaging.unit import Unit
from shared.service import Service
from shared.telemetry.metrics import JOBS_OVERDUE

MEASURE_EVERY = timedelta(seconds=15)
ANNOUNCING_SHARE = 0.005
"""Share of the time that announcing takes at most: with 25,000 jobs that wait, it runs every few minutes."""


def register(
    service: Service,
    handlers: Handlers,
    *,
    look_every: timedelta,
    look_anyway_every: timedelta,
    announce_every: timedelta,
) -> None:
    service.every(look_every, _queue_look(service, handlers, look_anyway_every), singleton=True)
    _announce(service, handlers, announce_every)
    _grow(service, handlers, look_anyway_every)

    async def measure() -> None:
        async with service.unit() as unit:
            await measure_overdue(unit, handlers.policy)

    service.every(MEASURE_EVERY, measure)


def _queue_look(service: Service, handlers: Handlers, anyway_every: timedelta) -> Loop:
    last_look = datetime.min.replace(tzinfo=UTC)

    async def look_at_queue() -> None:
        """Rounds that no message causes: a back-off ended, an estimate changed, a round of a message was full."""
        nonlocal last_look
        is_full = True
        while is_full:
            async with service.unit() as unit:
                is_due = handlers.is_round_full or unit.now - last_look >= anyway_every
                if not is_due and not await queue_store.is_back_off_over(unit.conn, last_look, unit.now):
                    return
                await unit.afterwards(handlers.start_waiting)
                is_full = handlers.is_round_full
            last_look = unit.now

    return look_at_queue


def _announce(service: Service, handlers: Handlers, announce_every: timedelta) -> None:
    announced: Announced = {}
    rests_until = time.monotonic()

    async def forget_announced() -> None:
        """Another process may have led in between."""
        nonlocal announced
        announced = {}

    async def announce_positions() -> None:
        nonlocal announced, rests_until
        if (began := time.monotonic()) < rests_until:
            return
        async with service.unit() as unit:
            latest = await handlers.announce_positions(unit, announced)
        announced = latest
        rests_until = began + (time.monotonic() - began) / ANNOUNCING_SHARE

    service.on_lead(forget_announced)
    service.every(announce_every, announce_positions, singleton=True)


def _grow(service: Service, handlers: Handlers, look_every: timedelta) -> None:
    since: Since = {}

    async def forget_since() -> None:
        """Another process may have led in between."""
        nonlocal since
        since = {}

    async def grow_elastic() -> None:
        nonlocal since
        async with service.unit() as unit:
            latest = await handlers.grow(unit, since)
        since = latest

    service.on_lead(forget_since)
    service.every(look_every, grow_elastic, singleton=True)


async def measure_overdue(unit: Unit, policy: Policy) -> None:
    """Count from the rows, so that a new process reports it as well."""
    late = overdue.count_overdue(await store.open_jobs(unit.conn), now=unit.now, policy=policy)
    for state, jobs in late.items():
        JOBS_OVERDUE.labels(state).set(jobs)
