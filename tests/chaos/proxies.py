"""A TCP proxy whose line gets slow, stalls, is cut or is reset while it runs: what a network does to a client."""

import asyncio
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass

CHUNK_BYTES = 64 * 1024
LOOPBACK = "127.0.0.1"
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
POSTGRES_SAID_COMMIT = b"C\x00\x00\x00\x0bCOMMIT\x00"
"""CommandComplete: from here on the transaction is durable, and only this answer says so."""

POSTGRES_PARSED_OUTBOX = struct.pack("!h6i", 6, 25, 25, 25, 25, 3802, 17)
"""From ParameterDescription, the types of what goes into the outbox. The server then waits for the values: within
a request, so that it does not count as idle in its transaction."""


@dataclass
class _Trap:
    """Springs in place of handing on these bytes of the server, so many times."""

    pattern: bytes
    left: int

    def springs(self, chunk: bytes) -> bool:
        is_sprung = self.left > 0 and self.pattern in chunk
        self.left -= is_sprung
        return is_sprung


UNSET = _Trap(b"", 0)


class _Line:
    """One connection of a client and the one to the server that it stands for."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._writers = (client, server)
        self.is_frozen = False
        self._is_over = asyncio.Event()
        self.budget: int | None = None
        """Bytes from the server that still pass, then the line is reset; None for no limit."""

    async def thaw(self) -> None:
        await self._is_over.wait()
        raise ConnectionResetError

    def reset(self) -> None:
        self._is_over.set()
        for writer in self._writers:
            raw = writer.get_extra_info("socket")
            with suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            writer.transport.abort()

    def is_reset_by(self, count: int) -> bool:
        if self.budget is not None:
            self.budget -= count
        return self.budget is not None and self.budget < 0


class TcpProxy:
    """`async with TcpProxy(port) as proxy`: clients connect to `proxy.port` in place of the server's port."""

    def __init__(self, target_port: int, *, port: int = 0) -> None:
        self._target_port = target_port
        self.port = port
        self.latency_seconds = 0.0
        """Added to whatever is handed on, in both directions."""
        self.connections = 0
        """So many were opened so far."""
        self.cuts = 0
        """So many were reset because of `cut_after` or `cut_at`."""
        self.freezes = 0
        """So many were frozen because of `freeze_at`."""
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._is_refusing = False
        self._cut_after: int | None = None
        self._cut = self._freeze = UNSET
        self._lines: set[_Line] = set()
        self._pumps: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "TcpProxy":
        self._server = await asyncio.start_server(self._serve, LOOPBACK, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.reset()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        await self._server.wait_closed()

    def heal(self) -> None:
        """Back to normal. What was stalled flows on; what was frozen is reset."""
        self.latency_seconds = 0.0
        self._is_refusing = False
        self._cut_after = None
        self._cut = self._freeze = UNSET
        for line in list(self._lines):
            line.budget = None
            if line.is_frozen:
                line.reset()
        self._flowing.set()

    def stall(self) -> None:
        """Hand nothing on, on connections of now and later, but close none: a dead network without a FIN."""
        self._flowing.clear()

    def freeze(self) -> None:
        """The connections of now are dead for good without a FIN; new ones work."""
        for line in self._lines:
            line.is_frozen = True

    def reset(self) -> None:
        """Reset the connections of now; new ones work."""
        for line in list(self._lines):
            line.reset()

    def refuse(self) -> None:
        """As a server that is gone: reset every connection, also new ones."""
        self._is_refusing = True
        self.reset()

    def cut_after(self, count: int) -> None:
        """Reset every connection after so many bytes more from the server."""
        self._cut_after = count
        for line in self._lines:
            line.budget = count

    def cut_at(self, pattern: bytes, *, times: int = 1) -> None:
        """Reset a connection in place of handing on these bytes of the server, so many times."""
        self._cut = _Trap(pattern, times)

    def freeze_at(self, pattern: bytes) -> None:
        """Freeze a connection in place of handing on these bytes of the server, once."""
        self._freeze = _Trap(pattern, 1)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            if self._is_refusing:
                raise ConnectionRefusedError
            server_reader, server_writer = await asyncio.open_connection(LOOPBACK, self._target_port)
        except OSError:
            writer.transport.abort()
            return
        line = _Line(writer, server_writer)
        line.budget = self._cut_after
        self._lines.add(line)
        up = asyncio.create_task(self._pump(line, reader, server_writer, from_server=False))
        down = asyncio.create_task(self._pump(line, server_reader, writer, from_server=True))
        self._pumps |= {up, down}
        await asyncio.wait({up, down})
        if line.is_frozen:
            line.reset()
        self._pumps -= {up, down}
        self._lines.discard(line)

    async def _pump(
        self, line: _Line, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, from_server: bool
    ) -> None:
        """Hand on until one side closes; then close the other."""
        with suppress(OSError, asyncio.CancelledError):
            while chunk := await reader.read(CHUNK_BYTES):
                if from_server and self._freeze.springs(chunk):
                    self.freezes += 1
                    line.is_frozen = True
                await self._hold(line)
                if from_server and self._cuts(line, chunk):
                    self.cuts += 1
                    line.reset()
                    return
                writer.write(chunk)
                await writer.drain()
        if not line.is_frozen:
            writer.close()

    async def _hold(self, line: _Line) -> None:
        if self.latency_seconds:
            await asyncio.sleep(self.latency_seconds)
        await self._flowing.wait()
        if line.is_frozen:
            await line.thaw()

    def _cuts(self, line: _Line, chunk: bytes) -> bool:
        return line.is_reset_by(len(chunk)) or self._cut.springs(chunk)
