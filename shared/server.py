"""The HTTP server of a service. At a stop it takes no new requests, and those under way have some time to end."""

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvicorn

from shared.confinement import keep_memory_private
from shared.log import get_logger
from shared.settings import Address, ServiceSettings
from shared.slow_clients import PacedConnection

log = get_logger(__name__)

START_FAILED = 3
"""Exit code of a failed start, as in uvicorn."""
IDLE_SECONDS = 120
"""Time for which a connection without a request stays open: longer than clients keep theirs (httpx 5 s, Go 90 s). Who
closes first must be the client, for a request that is sent at that moment would meet a closed connection."""
STOP_SECONDS = 8
"""Time for answers that are under way; with the stop of a service's loops it must fit into supervisors' limits."""


class Server(uvicorn.Server):
    """A server that notifies the application first; uvicorn's waits for open connections before its lifespan ends.

    It may have a second listener, whose connections are those of the first in all else.
    """

    def __init__(
        self, config: uvicorn.Config, on_stop: Callable[[], None], second: Address | None = None
    ) -> None:
        super().__init__(config)
        self._on_stop = on_stop
        self._second = second

    async def startup(self, *arguments: Any, **options: Any) -> None:
        await super().startup(*arguments, **options)
        if self._second is not None:
            await self._listen(self._second)

    async def _listen(self, address: Address) -> None:
        config = self.config
        try:
            listener = await asyncio.get_running_loop().create_server(
                self._connection,
                host=address.host,
                port=address.port,
                ssl=config.ssl,
                backlog=config.backlog,
            )
        except OSError as error:
            log.error("cannot listen for nodes", host=address.host, port=address.port, error=str(error))  # noqa: TRY400
            await self.lifespan.shutdown()
            sys.exit(START_FAILED)
        self.servers.append(listener)

    def _connection(self) -> asyncio.Protocol:
        return PacedConnection(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

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
    server = Server(config, on_stop, settings.listener_of_nodes)
    with suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        sys.exit(START_FAILED)
