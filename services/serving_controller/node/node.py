"""The life of a replica's node: report, be given an order, make it so, until the node or its lease ends.

An order says what shall be there, so that a controller, or an answer, that is away for a while changes nothing. A
replica ends with its lease, whoever is left (`shared/device_leases/fence.py`).
"""

import asyncio
from pathlib import Path

import httpx

from services.serving_controller.clients import guard
from services.serving_controller.clients.backend import EngineFacts, ReplicaSpec
from services.serving_controller.clients.files import ModelFiles
from services.serving_controller.clients.local import Engine, LocalBackend
from services.serving_controller.node.folders import Folders
from services.serving_controller.node.settings import Settings
from services.serving_controller.protocol import (
    OBJECTS_ROUTE,
    ROUTE,
    EngineOptions,
    NodeOrder,
    NodeReport,
    ReplicaStart,
)
from shared.clock import utc_now
from shared.log import get_logger
from shared.nodes.lease_node import Holder, OrderMissing

log = get_logger(__name__)

POLL_SECONDS = 1.0
REPLICA = "replica"
"""Name of the node's replica on its machine: there is one."""


class Node:
    def __init__(self, settings: Settings, *, http: httpx.AsyncClient | None = None) -> None:
        """http: None is a client that verifies servers as the settings say."""
        self._settings = settings
        self._holder = Holder(
            settings,
            settings.serving_controller_url,
            service="serving_controller",
            report_route=ROUTE,
            objects_route=OBJECTS_ROUTE,
            http=http,
        )
        objects = self._holder.objects
        files = ModelFiles(objects, scratch=settings.work_dir, bases=settings.cache_dir / "base-models")
        self._folders = Folders(files, settings.work_dir / "replicas" / REPLICA)
        self._backend: LocalBackend | None = None
        self._facts: EngineFacts | None = None
        self._start: ReplicaStart | None = None
        """What was started; it stays when that has ended."""

    async def run(self) -> None:
        """Follow orders, without end: the cluster backend ends the node, or the fence does."""
        self._holder.end_with_grant(self._end_replica)
        while True:
            await self.turn()
            await asyncio.sleep(POLL_SECONDS)

    async def turn(self) -> None:
        """Report once, and follow the order that comes; where none comes, everything stays."""
        try:
            order = await self._holder.report(await self._report(), NodeOrder)
        except OrderMissing as error:
            log.warning("no order", error=str(error))
            if error.is_refused and self._backend is not None:
                await self._backend.end(REPLICA)
            return
        await self._follow(order)

    async def _follow(self, order: NodeOrder) -> None:
        backend = self._backend = self._backend or self._new_backend(order.engine)
        await self._folders.follow(order.folders)
        if order.start is None:
            if self._start is not None:
                await backend.end(REPLICA)
            return
        if self._start is None or self._start.incarnation != order.start.incarnation:
            await self._start_replica(backend, order.start, order.lease_seconds)
        else:
            await backend.extend(REPLICA, order.lease_seconds)

    async def _start_replica(self, backend: LocalBackend, start: ReplicaStart, lease_seconds: float) -> None:
        paths = {state.path for state in self._folders.states}
        if start.model_dir not in paths:
            log.error("no such model here", path=start.model_dir, expected=sorted(paths))
            return
        self._start = start
        await backend.start(
            ReplicaSpec(
                replica_id=REPLICA,
                incarnation=start.incarnation,
                model_dir=Path(start.model_dir),
                served_name=start.served_name,
                max_lora_rank=start.max_lora_rank,
                adapter_layers=start.adapter_layers,
                key_digests={
                    guard.INFERENCE_DIGEST: start.inference_key_sha256,
                    guard.MANAGEMENT_DIGEST: start.management_key_sha256,
                },
                lease_seconds=lease_seconds,
            )
        )
        log.info("replica started", incarnation=start.incarnation)

    def _new_backend(self, options: EngineOptions) -> LocalBackend:
        settings = self._settings
        own = {"server": settings.replica_argv} if settings.replica_argv else {}
        engine = Engine.of(
            options,
            host=settings.host,
            cache_dir=settings.work_dir / "vllm-cache",
            is_over_tls=settings.tls.ca_file is not None,
            reads=settings.replica_reads,
            mark=f"RUNNER_NODE_ID={settings.node_id}",
            **own,
        )
        self._facts = engine.facts()
        # Its keys stay with serving_controller: this folder is never written.
        return LocalBackend(settings.work_dir / "replicas", settings.work_dir / "no-keys", engine=engine)

    async def _report(self) -> NodeReport:
        """Return the report, but for its time."""
        report = NodeReport(
            lease_id=self._settings.lease_id,
            node_id=self._settings.node_id,
            time=utc_now(),
            folders=self._folders.states,
        )
        if self._backend is None or self._facts is None:
            return report
        known = report.model_copy(update={"engine": self._facts.name, "device": self._facts.device})
        if self._start is None:
            return known
        status = await self._backend.inspect(REPLICA)
        is_alive = status is not None and status.is_alive
        return known.model_copy(
            update={
                "incarnation": self._start.incarnation,
                "url": status.url if status else "",
                "is_alive": is_alive,
                "log_tail": "" if is_alive else await self._backend.log_tail(REPLICA),
            }
        )

    def _end_replica(self) -> None:
        if self._backend is not None and (left := self._backend.kill(REPLICA)):
            log.error("processes of the replica survive SIGKILL", pids=left)
