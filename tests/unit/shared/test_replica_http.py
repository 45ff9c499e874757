import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from deploy.local.certificates import AUTHORITY, renew_authority, server_certificate
from shared.certificates import digest_of, new_pair
from shared.clock import utc_now
from shared.replica_http import FORGOTTEN_AFTER_SECONDS, Exact, address, replica_client, route_of
from shared.tls import Tls
from tests.waiting import PATIENCE_SECONDS

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@dataclass
class Server:
    port: int = 0
    heard: list[bytes] = field(default_factory=list)
    connections: list[asyncio.StreamWriter] = field(default_factory=list)


@asynccontextmanager
async def serving(pair: Path | None, *, port: int = 0) -> AsyncIterator[Server]:
    """A server that keeps what it hears, over TLS with this certificate. `port`: 0 takes a free one."""
    server = Server()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections.append(writer)
        while head := await reader.readuntil(b"\r\n\r\n"):
            server.heard.append(head)
            writer.write(ANSWER)

    context = None
    if pair is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair)
    listener = await asyncio.start_server(answer, "127.0.0.1", port, ssl=context)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        for writer in server.connections:
            writer.transport.abort()


@pytest.fixture
def authority(tmp_path: Path) -> Tls:
    renew_authority(tmp_path, now=utc_now())
    return Tls(ca_file=tmp_path / AUTHORITY)


def a_pair(folder: Path, name: str = "replica") -> tuple[Path, str]:
    path = folder / f"{name}.pem"
    path.write_bytes(new_pair(name))
    return path, digest_of(path.read_bytes())


async def test_a_replica_is_asked_that_has_the_key_of_the_certificate_which_its_address_names(
    authority, tmp_path
):
    pair, digest = a_pair(tmp_path)
    async with serving(pair) as server, replica_client(authority) as http:
        url = address("127.0.0.1", server.port, certificate=digest)
        answer = await http.get(route_of(url, "/v1/models"))
    assert answer.text == "ok"
    assert server.heard[0].startswith(b"GET /v1/models HTTP/1.1\r\n")
    assert digest.encode() not in b"".join(server.heard)


@pytest.mark.parametrize("impostor", ["its own", "the authority's"])
async def test_nothing_is_sent_to_an_impostor_at_its_address(authority, tmp_path, impostor):
    _, digest = a_pair(tmp_path)
    stranger = a_pair(tmp_path, "stranger")[0]
    if impostor == "the authority's":
        stranger = server_certificate(tmp_path, "stranger", now=utc_now())
    async with serving(stranger) as server, replica_client(authority) as http:
        url = address("127.0.0.1", server.port, certificate=digest)
        with pytest.raises(httpx.ConnectError, match=f"expected {digest}"):
            await http.get(route_of(url, "/v1/models"))
        assert server.heard == []


async def test_an_address_without_a_certificate_is_verified_by_the_authorities(authority, tmp_path):
    own = server_certificate(tmp_path, "replica", now=utc_now())
    async with serving(own) as server, replica_client(authority) as http:
        assert (await http.get(f"https://127.0.0.1:{server.port}/")).text == "ok"
    async with serving(a_pair(tmp_path)[0]) as server, replica_client(authority) as http:
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await http.get(f"https://127.0.0.1:{server.port}/")


async def test_plain_text_is_for_where_there_are_no_authorities(authority):
    async with serving(None) as server:
        url = address("127.0.0.1", server.port)
        async with replica_client(Tls()) as http:
            assert (await http.get(route_of(url, "/health"))).text == "ok"
        async with replica_client(authority) as http:
            with pytest.raises(httpx.UnsupportedProtocol, match="expected https://"):
                await http.get(route_of(url, "/health"))


async def test_a_name_of_a_certificate_that_is_none_is_an_error_and_not_passed_over(authority, tmp_path):
    async with serving(a_pair(tmp_path)[0]) as server, replica_client(authority) as http:
        with pytest.raises(httpx.UnsupportedProtocol, match="expected #sha256=<digest> at its end"):
            await http.get(f"https://127.0.0.1:{server.port}/health#md5=1")


async def test_connections_to_replicas_that_left_are_closed(tmp_path):
    (first, first_digest), (second, second_digest) = a_pair(tmp_path, "1"), a_pair(tmp_path, "2")
    clock = [0.0]
    transport = Exact(Tls(), monotonic=lambda: clock[0])
    async with (
        serving(first) as left,
        serving(second) as stays,
        httpx.AsyncClient(transport=transport) as http,
    ):
        await http.get(address("127.0.0.1", left.port, certificate=first_digest))
        clock[0] = FORGOTTEN_AFTER_SECONDS
        url = address("127.0.0.1", stays.port, certificate=second_digest)
        await http.get(url)
        assert not left.connections[0].is_closing()
        clock[0] += 1
        await http.get(url)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await left.connections[0].wait_closed()
        assert len(stays.connections) == 1
