"""HTTP clients for servers of the platform: over TLS alone where there are authorities to verify them with."""

from pathlib import Path
from typing import Any

import httpx

from shared.tls import CA_FILE, Tls, client_context


def http_client(tls: Tls, **options: Any) -> httpx.AsyncClient:
    """Return a client that verifies servers; with authorities it raises UnsupportedProtocol for one without TLS."""
    context = client_context(tls.ca_file)
    hooks = {"request": [_refuse_plain_text]} if context else {}
    return httpx.AsyncClient(verify=context or True, event_hooks=hooks, **options)


def http_client_of_threads(ca_file: Path | None, **options: Any) -> httpx.Client:
    """Return such a client for calls that block."""
    context = client_context(ca_file)
    hooks = {"request": [_require_https]} if context else {}
    return httpx.Client(verify=context or True, event_hooks=hooks, **options)


async def _refuse_plain_text(request: httpx.Request) -> None:
    _require_https(request)


def _require_https(request: httpx.Request) -> None:
    """Raise UnsupportedProtocol for plain text. The query, which may be a signature, is not named."""
    if request.url.scheme != "https":
        address = request.url.copy_with(query=None)
        raise httpx.UnsupportedProtocol(f"address {address}, expected https:// because {CA_FILE} is set")
