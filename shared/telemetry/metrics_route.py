"""What a process shows at `/metrics`."""

from collections.abc import Callable
from typing import Any

from prometheus_client import REGISTRY, make_asgi_app
from prometheus_client.registry import CollectorRegistry

ACCEPT = b"accept"


def metrics_app(registry: CollectorRegistry = REGISTRY) -> Callable[..., Any]:
    """Return the route that answers in Prometheus' text format, whatever else the client would take.

    Prometheus asks for OpenMetrics first, in which the library writes `vllm_…` for the names `vllm:…`.
    """
    answer = make_asgi_app(registry)

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        headers = [(name, value) for name, value in scope["headers"] if name != ACCEPT]
        await answer({**scope, "headers": headers}, receive, send)

    return app
