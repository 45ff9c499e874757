"""A judge's endpoint that replies by a function."""

import asyncio
import json
from contextlib import asynccontextmanager

from services.evaluator.clients.judge import ChatJudge


@asynccontextmanager
async def server(reply):
    """Serves POST …/chat/completions; `reply(request)` gives the content, bytes as they are, a status, or None to hang."""
    seen = []

    async def handle(reader, writer):
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = int(
                next(
                    line.split(":")[1]
                    for line in head.splitlines()
                    if line.lower().startswith("content-length")
                )
            )
            request = json.loads(await reader.readexactly(length))
            seen.append((head, request))
            await _answer(writer, reply(request))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/v1", seen
    finally:
        listening.close()


async def _answer(writer, reply):
    if reply is None:
        await asyncio.sleep(5)
        return
    status, body = 200, reply
    if isinstance(reply, int):
        status, body = reply, b"{}"
    elif isinstance(reply, str):
        body = json.dumps({"choices": [{"message": {"content": reply}}]}).encode()
    writer.write(
        f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body
    )
    await writer.drain()


@asynccontextmanager
async def a_judge(url, *, attempts=3, key=None, seconds=10.0):
    judge = ChatJudge(url, "judge", api_key=key, timeout_seconds=seconds, attempts=attempts, concurrency=16)
    try:
        yield judge
    finally:
        await judge.close()
