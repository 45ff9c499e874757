"""An HTTP proxy in front of S3 that answers as a bad day of S3 does, at a seeded rate."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from enum import StrEnum
from random import Random

from tests.chaos.proxies import CHUNK_BYTES, LOOPBACK

SLOW_PIECES = 20
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
ERROR = (
    "HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {length}\r\n"
    "Connection: close\r\n\r\n{body}"
)
CODE = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>asked for by a test</Message></Error>"


class Fault(StrEnum):
    INTERNAL_ERROR = "500 Internal Server Error"
    SLOW_DOWN = "503 Slow Down"
    SLOW_BODY = "the body comes in small pieces"
    TRUNCATED_BODY = "the line is cut in the middle of the body"
    LOST_ANSWER = "what was asked for is done, but the line is cut in place of the answer"


CODES = {Fault.INTERNAL_ERROR: "InternalError", Fault.SLOW_DOWN: "SlowDown"}


class S3Proxy:
    """`async with S3Proxy(port, seed=1) as proxy`: one request per connection; `rate` may change at any time."""

    def __init__(
        self,
        target_port: int,
        *,
        seed: int,
        rate: float = 0.0,
        faults: tuple[Fault, ...] = tuple(Fault),
        slow_seconds: float = 2.0,
        port: int = 0,
    ) -> None:
        self.port = port
        self.rate = rate
        """Share of the requests that meet a fault, 0 to 1."""
        self.faults = faults
        self.requests = 0
        self.injected: Counter[Fault] = Counter()
        self._slow_seconds = slow_seconds
        self._target_port = target_port
        self._random = Random(seed)
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "S3Proxy":
        self._server = await asyncio.start_server(self._serve, LOOPBACK, self.port, limit=CHUNK_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for each in self._serving:
            each.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._server.wait_closed()

    def _drawn(self, method: str) -> Fault | None:
        """An answer without a body cannot be slow or truncated, and a read whose answer is lost is just cut."""
        if self._random.random() >= self.rate:
            return None
        fault = self._random.choice(self.faults)
        if method == "GET":
            return Fault.TRUNCATED_BODY if fault is Fault.LOST_ANSWER else fault
        return Fault.LOST_ANSWER if fault in (Fault.TRUNCATED_BODY, Fault.SLOW_BODY) else fault

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._answer(reader, writer)
        finally:
            self._serving.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.requests += 1
        fault = self._drawn(head.split(b" ", 1)[0].decode())
        if fault:
            self.injected[fault] += 1
        request = _Request(head, reader, writer)
        if fault in CODES:
            await request.read_through()
            body = CODE.format(code=CODES[fault])
            writer.write(ERROR.format(status=fault.value, length=len(body), body=body).encode())
            await writer.drain()
        else:
            await self._pass_on(request, writer, fault)

    async def _pass_on(self, request: "_Request", writer: asyncio.StreamWriter, fault: Fault | None) -> None:
        reader, upstream = await asyncio.open_connection(LOOPBACK, self._target_port, limit=CHUNK_BYTES)
        try:
            upstream.write(request.head_for_server())
            async for chunk in request.body():
                upstream.write(chunk)
                await upstream.drain()
            await self._hand_back(reader, writer, fault)
        finally:
            upstream.close()

    async def _hand_back(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fault: Fault | None
    ) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if fault is Fault.LOST_ANSWER:
            writer.transport.abort()
            return
        writer.write(head)
        size = int(_header(head, "content-length") or 0)
        if fault is Fault.TRUNCATED_BODY:
            writer.write(await reader.readexactly(size // 2))
            await writer.drain()
            return
        if fault is Fault.SLOW_BODY:
            for _ in range(SLOW_PIECES - 1):
                writer.write(await reader.readexactly(size // SLOW_PIECES))
                await writer.drain()
                await asyncio.sleep(self._slow_seconds / SLOW_PIECES)
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()


class _Request:
    def __init__(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._head = head
        self._reader = reader
        self._writer = writer

    def head_for_server(self) -> bytes:
        """As it came, host included, since that is signed; but the server closes after its answer."""
        kept = [
            line
            for line in self._head.rstrip(b"\r\n").split(b"\r\n")
            if not line.lower().startswith((b"expect:", b"connection:"))
        ]
        return b"\r\n".join([*kept, b"Connection: close", b"", b""])

    async def body(self) -> AsyncIterator[bytes]:
        if _header(self._head, "expect"):
            self._writer.write(CONTINUE)
            await self._writer.drain()
        if (_header(self._head, "transfer-encoding") or "").lower() == "chunked":
            async for chunk in self._chunked():
                yield chunk
            return
        left = int(_header(self._head, "content-length") or 0)
        while left and (chunk := await self._reader.read(min(left, CHUNK_BYTES))):
            left -= len(chunk)
            yield chunk

    async def _chunked(self) -> AsyncIterator[bytes]:
        size = -1
        while size != 0:
            line = await self._reader.readuntil(b"\r\n")
            size = int(line.split(b";")[0], 16)
            yield line + await self._reader.readexactly(size + 2)

    async def read_through(self) -> None:
        async for _ in self.body():
            pass


def _header(head: bytes, name: str) -> str | None:
    for line in head.decode("latin-1").split("\r\n")[1:]:
        key, _, value = line.partition(":")
        if key.strip().lower() == name:
            return value.strip()
    return None
