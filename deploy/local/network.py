"""Questions to a port on this machine, each answered yes or no within a moment."""

import asyncio
from pathlib import Path

from deploy.local.state import LOOPBACK
from shared.tls import client_context

PATIENCE_SECONDS = 5.0


async def accepts_connections(port: int) -> bool:
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            _, writer = await asyncio.open_connection(LOOPBACK, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def answers_ok(port: int, path: str, *, ca_file: Path | None = None) -> bool:
    """Does GET `path` answer with status 200, over TLS if there is an authority?"""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return b" 200 " in await _status_line(port, path, ca_file)
    except (OSError, TimeoutError):
        return False


async def _status_line(port: int, path: str, ca_file: Path | None) -> bytes:
    reader, writer = await asyncio.open_connection(LOOPBACK, port, ssl=client_context(ca_file))
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {LOOPBACK}\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        return await reader.readline()
    finally:
        writer.close()
