"""HTTP connections that end when their client neither sends nor takes data that is due, whatever they hold.

A client must send the head of a request from the connection's first moment on, then its body, and must take the
answer. No data is due while the request is worked on, or while a stream has none to send.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from shared.log import get_logger

log = get_logger(__name__)

LOOK_SECONDS = 10.0
LEAST_BYTES = 10 * 1024
"""Least number of bytes to move between two looks while data is due."""
LOOKS = 3
"""Number of looks in a row with fewer bytes that end the connection; a single one may fall in a pause of ours."""


class PacedConnection(HttpToolsProtocol):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._is_receiving = True
        self._moved_bytes = 0
        self._unsent_bytes = 0
        self._slow_looks = 0
        self._next_look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look_later()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._moved_bytes += len(data)
        super().data_received(data)

    def on_message_begin(self) -> None:
        self._is_receiving = True
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._is_receiving = False
        super().on_message_complete()

    def resume_writing(self) -> None:
        """Count LEAST_BYTES as moved, because the write buffer is nearly empty."""
        self._moved_bytes += LEAST_BYTES
        super().resume_writing()

    def _look_later(self) -> None:
        self._next_look = self.loop.call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        self._moved_bytes += max(0, self._unsent_bytes - unsent)
        is_due = unsent > 0 or (self._is_receiving and not self.flow.read_paused)
        is_slow = is_due and self._moved_bytes < LEAST_BYTES
        self._slow_looks = self._slow_looks + 1 if is_slow else 0
        self._moved_bytes, self._unsent_bytes = 0, unsent
        if self._slow_looks < LOOKS:
            self._look_later()
            return
        log.info("slow client's connection ended", client=self.client, unsent_bytes=unsent)
        self.transport.abort()
