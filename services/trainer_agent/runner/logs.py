"""The log of runner and child, in numbered chunks to S3, so that it can be followed and is kept."""

import asyncio
from datetime import timedelta
from pathlib import Path

from schemas import layout
from services.trainer_agent.runner.journal import Journal, LogShipped
from shared.errors import Conflict, StorageUnavailable
from shared.log import get_logger
from shared.storage.objects import WriteOnceStore

log = get_logger(__name__)

MAX_CHUNK_BYTES = 1024 * 1024


class LogShipper:
    """Stores chunks of the log. Each is written once: the journal fixes its bytes before it is stored."""

    def __init__(
        self,
        objects: WriteOnceStore,
        journal: Journal,
        file: Path,
        *,
        job_id: str,
        attempt: int,
        node_index: int,
    ) -> None:
        self._objects = objects
        self._journal = journal
        self._file = file
        self._node = (job_id, attempt, node_index)
        self._lock = asyncio.Lock()
        self._pending = journal.last_log_chunk
        """Chunk that is fixed, but perhaps not stored: after a restart it is stored again, which changes nothing."""

    async def run(self, *, every: timedelta) -> None:
        """Store chunks until cancelled."""
        while True:
            await self.ship()
            await asyncio.sleep(every.total_seconds())

    async def ship(self) -> None:
        """Store all that the log has now; what S3 does not take stays for the next call."""
        async with self._lock:
            while chunk := self._pending or self._next_chunk():
                self._pending = chunk
                if not await self._store(chunk):
                    return
                self._pending = None

    def _next_chunk(self) -> LogShipped | None:
        last = self._journal.last_log_chunk
        start, number = (last.end, last.number + 1) if last else (0, 0)
        end = min(self._file.stat().st_size, start + MAX_CHUNK_BYTES)
        if end <= start:
            return None
        chunk = LogShipped(number=number, start=start, end=end)
        self._journal.add(chunk)
        return chunk

    async def _store(self, chunk: LogShipped) -> bool:
        with self._file.open("rb") as file:
            file.seek(chunk.start)
            data = file.read(chunk.end - chunk.start)
        try:
            await self._objects.put_bytes(layout.log(*self._node, chunk.number), data)
        except StorageUnavailable:
            return False
        except Conflict:
            log.exception("log chunk exists with other bytes", number=chunk.number)
        return True
