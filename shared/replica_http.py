"""How replicas are asked: over TLS the address of one names its certificate, and nobody else is spoken to.

`https://10.0.0.5:8000#sha256=<digest>`: a fragment is never sent, and goes wherever the address goes.
"""

import time
from collections.abc import Callable
from typing import Any

import httpx

from shared.certificates import context_for
from shared.http_client import http_client
from shared.tls import Tls, client_context

NAMED = "sha256="
FORGOTTEN_AFTER_SECONDS = 3600.0
"""Time without a request after which the connections to a replica are closed: longer than any answer takes."""


def address(host: str, port: int, *, certificate: str = "") -> str:
    """Return the address of a replica. `certificate`: digest of its certificate; empty: it speaks plain text."""
    return f"https://{host}:{port}#{NAMED}{certificate}" if certificate else f"http://{host}:{port}"


def route_of(url: str, path: str) -> httpx.URL:
    """Return the address of one of a replica's routes, which names its certificate too."""
    return httpx.URL(url).copy_with(path=path)


def replica_client(tls: Tls, **options: Any) -> httpx.AsyncClient:
    """Return a client for replicas. With authorities it refuses plain text; by them it verifies a replica whose
    address names no certificate, as those have that an earlier release started."""
    return http_client(tls, mounts={"https://": Exact(tls)}, **options)


class Exact(httpx.AsyncBaseTransport):
    """Sends a request to who has the key of the certificate that its address names."""

    def __init__(self, tls: Tls, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._verified = httpx.AsyncHTTPTransport(verify=client_context(tls.ca_file) or True)
        self._monotonic = monotonic
        self._exact: dict[str, tuple[httpx.AsyncHTTPTransport, float]] = {}
        """By digest, the connections and when they were used last."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        named = request.url.fragment
        if not named:
            return await self._verified.handle_async_request(request)
        if not named.startswith(NAMED):
            raise httpx.UnsupportedProtocol(f"address {request.url}, expected #{NAMED}<digest> at its end")
        transport = await self._transport(named.removeprefix(NAMED))
        return await transport.handle_async_request(request)

    async def aclose(self) -> None:
        for transport in (self._verified, *(transport for transport, _ in self._exact.values())):
            await transport.aclose()

    async def _transport(self, digest: str) -> httpx.AsyncHTTPTransport:
        now = self._monotonic()
        transport, _ = self._exact.get(digest) or (httpx.AsyncHTTPTransport(verify=context_for(digest)), now)
        self._exact[digest] = transport, now
        old = [each for each, (_, used) in self._exact.items() if now - used > FORGOTTEN_AFTER_SECONDS]
        for forgotten, _ in [self._exact.pop(each) for each in old]:
            await forgotten.aclose()
        return transport
