"""The HTTP server of a service, and how it stops: nothing new is taken, and what is under way has a time to end."""

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvicorn

from shared.confinement import keep_memory_private
from shared.settings import ServiceSettings
from shared.slow_clients import PacedConnection

START_FAILED = 3
"""Exit code, as uvicorn has it."""
STOP_SECONDS = 8
"""For answers that are under way. With the stop of a service's loops it has to fit into what supervisors give."""


class Server(uvicorn.Server):
    """uvicorn's waits for open connections before the application hears that it is to stop."""

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_stop = on_stop

    async def shutdown(self, *arguments: Any, **options: Any) -> None:
        self._on_stop()
        await super().shutdown(*arguments, **options)


def serve(app: Any, settings: ServiceSettings, *, on_stop: Callable[[], None] = lambda: None) -> None:
    """Until SIGTERM or SIGINT. What the process knows is kept from its children from here on.

    on_stop: called at the signal, to end what would last for as long as its client stays.
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
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    server = Server(config, on_stop)
    with suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        sys.exit(START_FAILED)
