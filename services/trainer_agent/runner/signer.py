"""Requests to S3 for this node's own objects: it has no key of S3, and asks trainer_agent to sign each."""

import time
from collections.abc import Callable
from datetime import datetime

import httpx

from schemas.object_requests import ROUTE, ObjectRequest, ObjectRequests
from services.trainer_agent.runner.settings import Settings
from shared.http_client import http_client
from shared.nodes.route import TIMEOUT, SignedRoute
from shared.nodes.signer import RequestSigner
from shared.signatures import PrivateKey

SERVICE = "trainer_agent"


class NodeSigner(RequestSigner):
    def __init__(
        self,
        settings: Settings,
        *,
        http: httpx.AsyncClient | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """http: None is a client that verifies servers as the settings say."""
        self._settings = settings
        route = SignedRoute(
            settings.trainer_agent_url,
            ROUTE,
            service=SERVICE,
            key=PrivateKey(settings.node_key_file.read_text().strip()),
            http=http or http_client(settings.tls, timeout=TIMEOUT),
        )
        super().__init__(route, self._requests, service=SERVICE, monotonic=monotonic)

    def _requests(self, asked: tuple[ObjectRequest, ...], at: datetime) -> ObjectRequests:
        return ObjectRequests(
            job_id=self._settings.job_id,
            attempt=self._settings.attempt,
            node_index=self._settings.node_index,
            node_id=self._settings.node_id,
            time=at,
            requests=asked,
        )
