"""The proxy of the chaos tests does to a line what it says; else a storm that it should make proves nothing."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.chaos.proxies import TcpProxy

SOON_SECONDS = 0.3


@pytest.fixture
async def proxy() -> AsyncIterator[TcpProxy]:
    """In front of a server that says again what it hears."""
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with TcpProxy(server.sockets[0].getsockname()[1]) as proxy:
        yield proxy
    server.close()
    await server.wait_closed()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(1000):
            writer.write(chunk)
            await writer.drain()
    except ConnectionError:
        pass
    writer.close()


class Client:
    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> "Client":
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.transport.abort()

    async def hears(self, text: bytes) -> bytes:
        self._writer.write(text)
        return await self._reader.readexactly(len(text))

    async def hears_nothing(self, text: bytes) -> bool:
        self._writer.write(text)
        done, _ = await asyncio.wait(
            {reading := asyncio.ensure_future(self._reader.read(100))}, timeout=SOON_SECONDS
        )
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        return not done


async def test_a_healthy_line_hands_everything_on(proxy: TcpProxy):
    async with Client(proxy.port) as client:
        assert await client.hears(b"x" * 100_000) == b"x" * 100_000


async def test_a_slow_line_adds_its_latency_both_ways(proxy: TcpProxy):
    async with Client(proxy.port) as client:
        proxy.latency_seconds = 0.1
        began = asyncio.get_running_loop().time()
        assert await client.hears(b"hello") == b"hello"
        assert asyncio.get_running_loop().time() - began >= 0.2


async def test_a_stalled_line_stays_open_and_flows_on(proxy: TcpProxy):
    async with Client(proxy.port) as client:
        proxy.stall()
        assert await client.hears_nothing(b"")
        asyncio.get_running_loop().call_later(0.05, proxy.heal)
        assert await client.hears(b"hello") == b"hello"


async def test_a_frozen_line_is_dead_until_its_reset_while_new_ones_work(proxy: TcpProxy):
    async with Client(proxy.port) as old:
        assert await old.hears(b"hello") == b"hello"
        proxy.freeze()
        assert await old.hears_nothing(b"again")
        async with Client(proxy.port) as new:
            assert await new.hears(b"hello") == b"hello"
            proxy.heal()
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await old.hears(b"again")
            assert await new.hears(b"hello") == b"hello"


async def test_a_line_is_frozen_in_place_of_certain_bytes_once(proxy: TcpProxy):
    proxy.freeze_at(b"PARSED")
    async with Client(proxy.port) as old:
        assert await old.hears(b"SELECT") == b"SELECT"
        assert await old.hears_nothing(b"PARSED")
        assert await old.hears_nothing(b"SELECT")
    async with Client(proxy.port) as new:
        assert await new.hears(b"PARSED") == b"PARSED"
    assert proxy.freezes == 1


async def test_a_line_is_cut_after_so_many_bytes(proxy: TcpProxy):
    async with Client(proxy.port) as client:
        proxy.cut_after(8)
        assert await client.hears(b"12345678") == b"12345678"
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await client.hears(b"9")
    proxy.heal()
    async with Client(proxy.port) as client:
        assert await client.hears(b"123456789") == b"123456789"


async def test_a_line_is_cut_in_place_of_certain_bytes_once(proxy: TcpProxy):
    proxy.cut_at(b"COMMIT")
    async with Client(proxy.port) as client:
        assert await client.hears(b"SELECT") == b"SELECT"
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await client.hears(b"COMMIT")
    async with Client(proxy.port) as client:
        assert await client.hears(b"COMMIT") == b"COMMIT"
    assert proxy.cuts == 1


async def test_a_reset_ends_what_is_open_and_a_refusal_what_comes(proxy: TcpProxy):
    async with Client(proxy.port) as client:
        assert await client.hears(b"hello") == b"hello"
        proxy.reset()
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await client.hears(b"hello")
    proxy.refuse()
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        async with Client(proxy.port) as client:
            await client.hears(b"hello")
    proxy.heal()
    async with Client(proxy.port) as client:
        assert await client.hears(b"hello") == b"hello"
