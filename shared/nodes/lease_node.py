"""The program on the node of a lease: it reports to the lease's holder, and is answered with what shall be there.

An order is a state and no deed, so that a holder, or an answer, that is away for a while changes nothing.
"""

import asyncio
import signal
import time
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from schemas.object_requests import ObjectRequest
from shared.http_client import http_client
from shared.log import get_logger
from shared.nodes.fence import Fence, GrantReader, why_fenced
from shared.nodes.requests import LeaseObjects, NodeRequest
from shared.nodes.route import TIMEOUT, RequestFailed, SignedRoute
from shared.nodes.settings import LeaseNodeSettings
from shared.nodes.signer import RequestSigner
from shared.signatures import PrivateKey
from shared.storage.presigned import PresignedObjectStore

log = get_logger(__name__)

REFUSED = 403
Order = TypeVar("Order", bound=BaseModel)


class OrderMissing(Exception):
    """No order came."""

    def __init__(self, message: str, *, is_refused: bool = False) -> None:
        super().__init__(message)
        self.is_refused = is_refused
        """Whether the holder answers that this node has no lease."""


class Holder:
    """The service that holds the lease, as its node reaches it."""

    def __init__(
        self,
        settings: LeaseNodeSettings,
        address: str,
        *,
        service: str,
        report_route: str,
        objects_route: str,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        """http: None is a client that verifies servers as the settings say."""
        self._settings = settings
        self._service = service
        http = http or http_client(settings.tls, timeout=TIMEOUT)
        key = PrivateKey(settings.node_key_file.read_text().strip())
        self._reports = SignedRoute(address, report_route, service=service, key=key, http=http)
        objects = SignedRoute(address, objects_route, service=service, key=key, http=http)
        signer = RequestSigner(objects, self._objects, service=service)
        self.objects = PresignedObjectStore(signer, ca_file=settings.tls.ca_file)
        """Of S3 what the holder lets this node have."""
        self._answered_at = time.monotonic()

    async def report(self, report: NodeRequest, kind: type[Order]) -> Order:
        """Send the report, with the time at which it is signed, and return the order. Raises OrderMissing."""
        began = time.monotonic()
        try:
            content = await self._reports.ask(lambda at: report.model_copy(update={"time": at}))
            order = kind.model_validate_json(content)
        except RequestFailed as error:
            raise OrderMissing(str(error), is_refused=error.status == REFUSED) from error
        except ValidationError as error:
            raise OrderMissing(f"{self._service} answers what is no order: {error}") from error
        self._answered_at = began
        return order

    def end_with_grant(self, end_child: Callable[[], None]) -> None:
        """Have this process end, after what it started, once it may not run here any more; a notice ends nothing.

        With a grant, silence of the holder is no reason: what runs here ends with its lease
        (`shared/device_leases/fence.py`).
        """
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, _on_notice)
        settings, reader = self._settings, None
        if settings.grant_file is not None:
            reader = GrantReader(settings.grant_file, node_id=settings.node_id)
            reader.start()

        def reason() -> str:
            return why_fenced(
                acknowledged_at=time.monotonic() if reader else self._answered_at,
                grant=reader.grant if reader else None,
                fence_after=settings.fence_after,
                outage_limit=settings.fence_after,
                now=time.monotonic(),
            )

        Fence(reason, end_child=end_child).start()

    def _objects(self, asked: tuple[ObjectRequest, ...], at: datetime) -> LeaseObjects:
        settings = self._settings
        return LeaseObjects(lease_id=settings.lease_id, node_id=settings.node_id, time=at, requests=asked)


def _on_notice() -> None:
    """The holder has the notice of the cluster backend; nothing is to be done here."""
    log.warning("notice: the node goes away")
