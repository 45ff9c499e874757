"""An HTTP server that is sent webhooks, and answers each path in its own way."""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import openai

from shared.loops import cancel
from tests.waiting import until

NEVER = 0
"""Way of an endpoint that takes a request and answers nothing."""


@dataclass(frozen=True)
class Request:
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def event(self) -> Any:
        return json.loads(self.body)

    @property
    def message(self) -> str:
        return str(self.event["data"].get("message", ""))

    def unwrapped(self, secret: str) -> Any:
        """Raises InvalidWebhookSignatureError."""
        return openai.OpenAI(api_key="x").webhooks.unwrap(self.body, self.headers, secret=secret)


@dataclass
class Receiver:
    ways: dict[str, list[int]] = field(default_factory=dict)
    """Statuses of the next answers of a path; the last one stays, 200 where there is none."""
    requests: dict[str, list[Request]] = field(default_factory=lambda: defaultdict(list))
    port: int = 0
    _server: asyncio.Server | None = None
    _connections: set[asyncio.Task[None]] = field(default_factory=set)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def start(self) -> None:
        """At the port that it had before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await cancel([*self._connections])

    async def until(self, path: str, count: int) -> list[Request]:
        async def has_come() -> bool:
            return len(self.requests[path]) >= count

        await until(has_come, f"{count} requests at {path}")
        return list(self.requests[path])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        # Whoever asked may go before it has its answer.
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            await self._answer(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        self._connections.discard(task)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        path = lines[0].split(" ")[1]
        pairs = (line.partition(": ") for line in lines[1:] if line)
        headers = {name.lower(): value for name, _, value in pairs}
        body = await reader.readexactly(int(headers["content-length"]))
        ways = self.ways.get(path) or [200]
        status = ways.pop(0) if len(ways) > 1 else ways[0]
        self.requests[path].append(Request(headers, body))
        if status == NEVER:
            await reader.read()
            return
        head = f"HTTP/1.1 {status} X\r\nlocation: /elsewhere\r\ncontent-length: 3\r\nconnection: close\r\n\r\nyes"
        writer.write(head.encode())
        await writer.drain()


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    await receiver.start()
    yield receiver
    await receiver.stop()
