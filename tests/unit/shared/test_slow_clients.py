"""Clients that send or read slowly, on real sockets of the server that every service runs."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from shared import slow_clients
from shared.slow_clients import PacedConnection
from tests.waiting import PATIENCE_SECONDS, until

LOOK_SECONDS = 0.05
GET = b"GET %s HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"


class Site:
    """What the application has under way."""

    def __init__(self) -> None:
        self.events = asyncio.Semaphore(0)
        self.has_ended = asyncio.Event()
        self.sent_bytes = 0
        self.port = 0
        self.clients: list[socket.socket] = []

    async def echo(self, request: Request) -> PlainTextResponse:
        try:
            return PlainTextResponse(str(len(await request.body())))
        finally:
            self.has_ended.set()

    async def unread(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse("no", status_code=401)

    async def download(self, request: Request) -> StreamingResponse:
        return StreamingResponse(self._parts(64 * 1024))

    async def stream(self, request: Request) -> StreamingResponse:
        return StreamingResponse(self._events())

    async def _parts(self, size: int) -> AsyncIterator[bytes]:
        try:
            while True:
                await asyncio.sleep(0)  # as a file's parts, which a thread reads
                yield bytes(size)
                self.sent_bytes += size
        finally:
            self.has_ended.set()

    async def _events(self) -> AsyncIterator[str]:
        while True:
            await self.events.acquire()
            yield "data: x\n\n"

    async def connect(self) -> socket.socket:
        """A plain one: asyncio's own streams would read ahead."""
        sock = socket.socket()
        self.clients.append(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        return sock


@pytest.fixture
async def site(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setattr(slow_clients, "LOOK_SECONDS", LOOK_SECONDS)
    site = Site()
    routes = [
        Route("/echo", site.echo, methods=["POST"]),
        Route("/unread", site.unread, methods=["POST"]),
        Route("/download", site.download),
        Route("/stream", site.stream),
    ]
    config = uvicorn.Config(
        Starlette(routes=routes), port=0, log_level="error", lifespan="off", http=PacedConnection
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    site.port = server.servers[0].sockets[0].getsockname()[1]
    yield site
    for client in site.clients:
        client.close()
    server.should_exit = server.force_exit = True
    await serving


async def with_timeout(step: Awaitable[Any]) -> Any:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await step


async def rest_of(sock: socket.socket) -> bytes:
    """Until the other side ends the connection, in order or not."""
    received = b""
    try:
        while part := await asyncio.get_running_loop().sock_recv(sock, 65536):
            received += part
    except ConnectionResetError:
        pass
    return received


async def drip(sock: socket.socket) -> None:
    """A byte now and then, until the other side has had enough."""
    loop = asyncio.get_running_loop()
    try:
        while True:
            await loop.sock_sendall(sock, b"x")
            await asyncio.sleep(LOOK_SECONDS / 2)
    except (ConnectionResetError, BrokenPipeError):
        return


@pytest.mark.parametrize("head", [b"", b"GET /stream HTTP/1.1\r\nx-a: "], ids=["nothing", "half a head"])
async def test_a_head_that_does_not_come_ends_the_connection(site: Site, head: bytes):
    sock = await site.connect()
    await asyncio.get_running_loop().sock_sendall(sock, head)
    assert await with_timeout(rest_of(sock)) == b""


@pytest.mark.parametrize("path", [b"/echo", b"/unread"])
async def test_a_body_that_drips_ends_the_connection(site: Site, path: bytes):
    sock = await site.connect()
    head = (POST % 10**9).replace(b"/echo", path)
    await asyncio.get_running_loop().sock_sendall(sock, head)
    await with_timeout(drip(sock))
    if path == b"/echo":
        await with_timeout(site.has_ended.wait())


async def test_a_second_request_must_come_as_fast_as_the_first(site: Site):
    sock, loop = await site.connect(), asyncio.get_running_loop()
    await loop.sock_sendall(sock, POST % 2 + b"ab" + b"GET /stream HTT")
    assert (await with_timeout(rest_of(sock))).endswith(b"\r\n\r\n2")


async def test_a_download_that_is_not_read_ends_and_takes_no_more_memory_than_its_buffers(site: Site):
    sock = await site.connect()
    await asyncio.get_running_loop().sock_sendall(sock, GET % b"/download")
    await with_timeout(site.has_ended.wait())
    assert site.sent_bytes < 16 * 1024**2


async def test_a_download_that_is_read_in_time_continues(site: Site):
    sock, loop = await site.connect(), asyncio.get_running_loop()
    await loop.sock_sendall(sock, GET % b"/download")
    until_seconds = loop.time() + 10 * LOOK_SECONDS
    while loop.time() < until_seconds:
        assert await with_timeout(loop.sock_recv(sock, 65536))


async def test_a_body_that_comes_in_time_is_taken(site: Site):
    sock, loop = await site.connect(), asyncio.get_running_loop()
    parts = 20
    await loop.sock_sendall(sock, POST % (parts * 12 * 1024))
    for _ in range(parts):
        await loop.sock_sendall(sock, bytes(12 * 1024))
        await asyncio.sleep(LOOK_SECONDS / 2)
    assert b"245760" in await with_timeout(loop.sock_recv(sock, 65536))


async def test_a_stream_that_has_nothing_to_say_stays_open(site: Site):
    sock, loop = await site.connect(), asyncio.get_running_loop()
    await loop.sock_sendall(sock, GET % b"/stream")
    site.events.release()
    assert b"data: x" in await with_timeout(received_with(sock, b"data: x"))
    await asyncio.sleep(10 * LOOK_SECONDS)
    site.events.release()
    assert b"data: x" in await with_timeout(received_with(sock, b"data: x"))


async def received_with(sock: socket.socket, text: bytes) -> bytes:
    received = b""
    while text not in received:
        part = await asyncio.get_running_loop().sock_recv(sock, 65536)
        assert part, "the connection was ended"
        received += part
    return received
