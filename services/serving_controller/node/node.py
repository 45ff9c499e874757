"""The life of a replica's node: report, be given an order, make it so, until the node or its lease ends.

An order says what shall be there, so that a controller, or an answer, that is away for a while changes nothing. A
replica ends with its lease, whoever is left (`shared/device_leases/fence.py`).
"""

import asyncio
import signal
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import httpx
from pydantic import ValidationError

from schemas.object_requests import ObjectRequest
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
    ReplicaObjects,
    ReplicaStart,
)
from shared.clock import utc_now
from shared.http_client import http_client
from shared.log import get_logger
from shared.nodes.fence import Fence, GrantReader, why_fenced
from shared.nodes.route import TIMEOUT, RequestFailed, SignedRoute
from shared.nodes.signer import RequestSigner
from shared.signatures import PrivateKey
from shared.storage.presigned import PresignedObjectStore

log = get_logger(__name__)

POLL_SECONDS = 1.0
SERVICE = "serving_controller"
REFUSED = 403
REPLICA = "replica"
"""Name of the node's replica on its machine: there is one."""


class Node:
    def __init__(self, settings: Settings, *, http: httpx.AsyncClient | None = None) -> None:
        """http: None is a client that verifies servers as the settings say."""
        self._settings = settings
        self._key = PrivateKey(settings.node_key_file.read_text().strip())
        self._http = http or http_client(settings.tls, timeout=TIMEOUT)
        self._reports = self._route(ROUTE)
        signer = RequestSigner(self._route(OBJECTS_ROUTE), self._objects, service=SERVICE)
        objects = PresignedObjectStore(signer, ca_file=settings.tls.ca_file)
        files = ModelFiles(objects, scratch=settings.work_dir, bases=settings.cache_dir / "base-models")
        self._folders = Folders(files, settings.work_dir / "replicas" / REPLICA)
        self._backend: LocalBackend | None = None
        self._facts: EngineFacts | None = None
        self._start: ReplicaStart | None = None
        """What was started; it stays when that has ended."""
        self._answered_at = time.monotonic()

    async def run(self) -> None:
        """Follow orders, without end: the cluster backend ends the node, or the fence does."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, _on_notice)
        Fence(self._fence_reason(), end_child=self._end_replica).start()
        while True:
            await self.turn()
            await asyncio.sleep(POLL_SECONDS)

    async def turn(self) -> None:
        """Report once, and follow the order that comes; where none comes, everything stays."""
        began = time.monotonic()
        report = await self._report()
        try:
            content = await self._reports.ask(lambda at: report.model_copy(update={"time": at}))
            order = NodeOrder.model_validate_json(content)
        except RequestFailed as error:
            log.warning("no order", error=str(error))
            if error.status == REFUSED and self._backend is not None:
                await self._backend.end(REPLICA)
            return
        except ValidationError as error:
            log.warning("no order", error=f"{SERVICE} answers what is no order: {error}")
            return
        self._answered_at = began
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

    def _objects(self, asked: tuple[ObjectRequest, ...], at: datetime) -> ReplicaObjects:
        settings = self._settings
        return ReplicaObjects(lease_id=settings.lease_id, node_id=settings.node_id, time=at, requests=asked)

    def _route(self, path: str) -> SignedRoute:
        address = self._settings.serving_controller_url
        return SignedRoute(address, path, service=SERVICE, key=self._key, http=self._http)

    def _fence_reason(self) -> Callable[[], str]:
        """Start to read the grant, if there is one. Return the function that says why the node must end itself.

        With a grant, silence of the controller is no reason: the replica serves on until its lease is over.
        """
        settings, reader = self._settings, None
        if settings.grant_file is not None:
            reader = GrantReader(settings.grant_file, node_id=settings.node_id)
            reader.start()
        return lambda: why_fenced(
            acknowledged_at=time.monotonic() if reader else self._answered_at,
            grant=reader.grant if reader else None,
            fence_after=settings.fence_after,
            outage_limit=settings.fence_after,
            now=time.monotonic(),
        )

    def _end_replica(self) -> None:
        if self._backend is not None and (left := self._backend.kill(REPLICA)):
            log.error("processes of the replica survive SIGKILL", pids=left)


def _on_notice() -> None:
    """The controller has the notice of the cluster backend and lets the replica leave; nothing is to be done here."""
    log.warning("notice: the node goes away")
