"""The life of an evaluation's node: report, be given an order, carry it out, until the node or its lease ends.

An order says what shall be scored, so that an evaluator, or an answer, that is away for a while changes nothing. The
scoring child ends with its lease, whoever is left (`shared/device_leases/fence.py`).
"""

import asyncio

import httpx

from services.evaluator.clients.files import Cache
from services.evaluator.node.run import Run
from services.evaluator.node.settings import Settings
from services.evaluator.protocol import OBJECTS_ROUTE, REPORT_ROUTE, ScoringOrder, ScoringReport
from shared.clock import utc_now
from shared.log import get_logger
from shared.nodes.lease_node import Holder, OrderMissing

log = get_logger(__name__)

POLL_SECONDS = 1.0
NO_LIMIT = 2**63
"""Of the cache in bytes: what this node fetches goes with it, and base models are others' too."""


class Node:
    def __init__(self, settings: Settings, *, http: httpx.AsyncClient | None = None) -> None:
        """http: None is a client that verifies servers as the settings say."""
        self._settings = settings
        self._holder = Holder(
            settings,
            settings.evaluator_url,
            service="evaluator",
            report_route=REPORT_ROUTE,
            objects_route=OBJECTS_ROUTE,
            http=http,
        )
        self._cache = Cache(
            self._holder.objects,
            settings.work_dir,
            max_bytes=NO_LIMIT,
            bases=settings.cache_dir / "base-models",
        )
        self._run: Run | None = None

    async def run(self) -> None:
        """Follow orders, without end: the cluster backend ends the node, or the fence does."""
        self._holder.end_with_grant(self._end_child)
        while True:
            await self.turn()
            await asyncio.sleep(POLL_SECONDS)

    async def turn(self) -> None:
        """Report once, and follow the order that comes; where none comes, everything stays."""
        try:
            order = await self._holder.report(self._report(), ScoringOrder)
        except OrderMissing as error:
            log.warning("no order", error=str(error))
            if error.is_refused:
                await self._end()
            return
        await self._follow(order)

    async def _follow(self, order: ScoringOrder) -> None:
        if self._run is not None and (order.work is None or self._run.work != order.work):
            await self._end()
        if order.work is None:
            return
        if self._run is not None:
            self._run.extend(order.lease_seconds)
            return
        self._run = Run(
            order.work,
            lease_id=self._settings.lease_id,
            cache=self._cache,
            objects=self._holder.objects,
            work_dir=self._cache.work_dir(order.work.order.sha256),
        )
        self._run.start(order.lease_seconds)
        log.info("run started", eval_id=order.work.eval_id, order_sha256=self._run.order_sha256)

    async def _end(self) -> None:
        if self._run is not None:
            await self._run.end()
            self._run = None

    def _report(self) -> ScoringReport:
        """Return the report, but for its time."""
        run = self._run
        return ScoringReport(
            lease_id=self._settings.lease_id,
            node_id=self._settings.node_id,
            time=utc_now(),
            order_sha256=run.order_sha256 if run else None,
            progress=run.progress if run else (),
            problem=run.problem if run else "",
            outcome=run.outcome if run else None,
        )

    def _end_child(self) -> None:
        if self._run is not None:
            self._run.end_child()
