"""Delivers what waits: each process claims queues under a lease, sends the first of each, and records the result.

A delivery is sent at least once: the record comes after the answer, and a process may end between the two.
"""

import asyncio
import random
from collections.abc import Sequence
from datetime import timedelta

from prometheus_client import Counter, Gauge

from services.gateway.webhooks import decide, store
from services.gateway.webhooks.decide import BackOff, Outcome
from services.gateway.webhooks.model import Claim, Delivery, Endpoint, Result
from services.gateway.webhooks.sender import Sender
from shared import loops
from shared.failpoints import failpoint
from shared.log import get_logger, log_context
from shared.messaging.wake import wait_for_wake
from shared.postgres.database import false_if_unavailable, is_unavailable
from shared.retry import RetryPolicy, retry_until_available
from shared.service import Service

log = get_logger(__name__)

DELIVERIES = Counter(
    "webhook_deliveries_total", "Attempts to deliver a webhook, by what followed", ["outcome"]
)
OLDEST_WAITING = Gauge(
    "webhook_oldest_waiting_seconds", "Since the oldest webhook was due that is to be delivered, seconds"
)

POLL_SECONDS = 0.5
ROUND_EVERY = timedelta(milliseconds=100)
DRAIN_SECONDS = 3.0
"""How long a process that stops waits for what it has sent to be answered."""
MEASURE_EVERY = timedelta(minutes=1)
OF_AN_ENDPOINT = 4
"""Deliveries to one endpoint at once, of different subjects and by all processes; to one that fails a single one."""
MARGIN = timedelta(seconds=20)
"""How much longer a lease lasts than an attempt: time to record the result, also where Postgres is away for it."""


class Deliverer:
    def __init__(
        self,
        service: Service,
        sender: Sender,
        *,
        owner: str,
        timeout: timedelta,
        back_off: BackOff,
        limit: int,
    ) -> None:
        self._service = service
        self._database = service.database
        self._sender = sender
        self._owner = owner
        self._lease = timeout + MARGIN
        self._back_off = back_off
        self._limit = limit
        self._running: dict[asyncio.Task[None], Claim] = {}
        self._wake_event = asyncio.Event()

    def register(self) -> None:
        self._service.on_start(self._free_own)
        self._service.every(ROUND_EVERY, self._round)
        self._service.every(MEASURE_EVERY, self._measure)
        self._service.on_stop(self._stop)

    async def _free_own(self) -> None:
        await store.free_own(self._database, self._owner)

    async def _round(self) -> None:
        while await false_if_unavailable(self._start_due()):
            pass
        await wait_for_wake(self._wake_event, at_most_seconds=POLL_SECONDS)

    async def _start_due(self) -> bool:
        claims = await self._claim()
        for claim in claims:
            task = asyncio.create_task(self._deliver(claim))
            self._running[task] = claim
            task.add_done_callback(self._ended)
        return bool(claims)

    async def _claim(self) -> Sequence[Claim]:
        free = self._limit - len(self._running)
        if free <= 0:
            return ()
        failing = sum(claim.is_failing for claim in self._running.values())
        return await store.claim(
            self._database,
            self._owner,
            lease=self._lease,
            of_an_endpoint=OF_AN_ENDPOINT,
            limit=free,
            failing=max(0, (self._limit + 1) // 2 - failing),
        )

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._wake_event.set()

    async def _stop(self) -> None:
        """What is not answered soon is cut off; another process sends it again."""
        if self._running:
            await asyncio.wait(self._running, timeout=DRAIN_SECONDS)
        await loops.cancel([*self._running])
        await self._sender.close()
        await false_if_unavailable(store.free_own(self._database, self._owner))

    async def _deliver(self, claim: Claim) -> None:
        with log_context(endpoint_id=claim.endpoint_id, subject=claim.subject):
            try:
                await self._send_first(claim)
            except Exception:
                log.exception("webhook is sent again once its lease has expired")

    async def _send_first(self, claim: Claim) -> None:
        first = await store.first_of(self._database, claim)
        result = Result()
        if first is not None:
            endpoint, delivery = first
            now = self._service.clock()
            result = await self._sender.send(endpoint, delivery.event_id, delivery.body, now=now)
            failpoint("webhook.sent")
        await retry_until_available(
            lambda: self._record(claim, first and first[1], result),
            is_away=is_unavailable,
            retry_policy=RetryPolicy(limit=MARGIN / 2),
        )

    async def _record(self, claim: Claim, delivery: Delivery | None, result: Result) -> None:
        outcome: Outcome | None = None
        async with self._service.unit() as unit:
            endpoint = await store.hold_endpoint(unit.conn, claim.endpoint_id)
            if endpoint is None or not await store.hold_queue(unit.conn, claim):
                log.warning("webhook's endpoint was deleted, or its lease expired and others send it")
                return
            if delivery is not None:
                outcome = self._outcome(delivery, endpoint, result)
                await store.save_attempt(unit.conn, delivery, endpoint, result, outcome, now=unit.now)
            is_enabled = endpoint.is_enabled and not (outcome and outcome.disabled_reason)
            due_at = (outcome and outcome.due_at) or unit.now
            await store.free_queue(unit.conn, claim, is_enabled=is_enabled, due_at=due_at)
        if outcome is not None:
            DELIVERIES.labels(outcome.label).inc()
            if outcome.disabled_reason:
                log.warning("webhook endpoint is switched off", reason=outcome.disabled_reason)

    def _outcome(self, delivery: Delivery, endpoint: Endpoint, result: Result) -> Outcome:
        return decide.after_attempt(
            delivery,
            endpoint,
            result,
            now=self._service.clock(),
            jitter=random.random(),  # noqa: S311
            back_off=self._back_off,
        )

    async def _measure(self) -> None:
        oldest = await store.oldest_waiting(self._database)
        now = self._service.clock()
        OLDEST_WAITING.set(0.0 if oldest is None else (now - oldest).total_seconds())
