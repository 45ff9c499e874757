"""The HTTP server of a service. At a stop it takes no new requests, and those under way have some time to end."""

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvicorn

from shared.confinement import keep_memory_private
from shared.settings import ServiceSettings
from shared.slow_clients import PacedConnection

START_FAILED = 3
"""Exit code of a failed start, as in uvicorn."""
IDLE_SECONDS = 120
"""Time for which a connection without a request stays open: longer than clients keep theirs (httpx 5 s, Go 90 s). Who
closes first must be the client, for a request that is sent at that moment would meet a closed connection."""
STOP_SECONDS = 8
"""Time for answers that are under way; with the stop of a service's loops it must fit into supervisors' limits."""


class Server(uvicorn.Server):
    """A server that notifies the application first; uvicorn's waits for open connections before its lifespan ends."""

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_stop = on_stop

    async def shutdown(self, *arguments: Any, **options: Any) -> None:
        self._on_stop()
        await super().shutdown(*arguments, **options)


def serve(app: Any, settings: ServiceSettings, *, on_stop: Callable[[], None] = lambda: None) -> None:
    """Serve until SIGTERM or SIGINT. The process's memory is protected from its children from here on.

    `on_stop` is called at the signal, to end answers that would last for as long as their clients stay.
    """
    keep_memory_private()
    config = uvicorn.Config(
        app,
        host=settings.http_host,
        port=settings.http_port,
        log_level="warning",
        lifespan="on",
        http=PacedConnection,
        loop="uvloop",
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
        ssl_certfile=settings.tls.cert_file,
        ssl_keyfile=settings.tls.key_file,
    )
    server = Server(config, on_stop)
    with suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        sys.exit(START_FAILED)
