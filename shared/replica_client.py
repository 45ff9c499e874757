"""The HTTP client that services ask replicas with: over TLS alone where there are authorities to verify them with."""

from typing import Any

import httpx

from shared.tls import CA_FILE, Tls, client_context


def replica_client(tls: Tls, **options: Any) -> httpx.AsyncClient:
    """Return a client that verifies replicas; with authorities it raises UnsupportedProtocol for one without TLS."""
    context = client_context(tls.ca_file)
    hooks = {"request": [_refuse_plain_text]} if context else {}
    return httpx.AsyncClient(verify=context or True, event_hooks=hooks, **options)


async def _refuse_plain_text(request: httpx.Request) -> None:
    if request.url.scheme != "https":
        raise httpx.UnsupportedProtocol(f"found {request.url}, expected https:// because {CA_FILE} is set")
