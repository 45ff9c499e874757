"""Requests of webhooks: to the address that was checked, by a certificate of the host's name, and within limits."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from services.gateway.webhooks import sender as module
from services.gateway.webhooks.model import Result
from services.gateway.webhooks.sender import Sender
from shared.clock import utc_now
from tests.integration.receiver import NEVER, Receiver, receiving
from tests.unit.gateway.test_webhooks import an_endpoint

LOOPBACK = (ip_network("127.0.0.0/8"),)
NOT_PUBLIC = "the host's address is none of the public internet"


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


async def sent(url: str, *, networks: Sequence[Any] = LOOPBACK, seconds: float = 10.0) -> Result:
    sender = Sender(secret="s", allow_http=True, networks=tuple(networks), timeout_seconds=seconds)
    try:
        return await sender.send(an_endpoint(url=url), "evt_1", '{"a": "é"}', now=utc_now())
    finally:
        await sender.close()


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[list[str]]]:
    """Addresses of hosts, for one look-up after the other; the last ones stay."""
    known: dict[str, list[list[str]]] = {}

    def look_up(host: str, port: int) -> list[str]:
        answers = known.get(host)
        if answers is None:
            raise socket.gaierror(host)
        return answers.pop(0) if len(answers) > 1 else answers[0]

    monkeypatch.setattr(module, "_look_up", look_up)
    return known


async def test_what_is_sent_has_three_headers_and_the_host_of_the_url(receiver, names):
    names["hooks.example.com"] = [["127.0.0.1"]]
    assert await sent(f"http://hooks.example.com:{receiver.port}/a?b=c%20d") == Result(200)
    (request,) = receiver.requests["/a?b=c%20d"]
    assert request.headers["host"] == f"hooks.example.com:{receiver.port}"
    assert request.headers["content-type"] == "application/json"
    assert {"webhook-id", "webhook-timestamp", "webhook-signature"} <= request.headers.keys()
    assert request.body.decode() == '{"a": "é"}'


@pytest.mark.parametrize("status", [204, 301, 302, 307, 308, 404, 500])
async def test_the_status_is_the_result_and_no_redirect_is_followed(receiver, status):
    receiver.ways["/a"] = [status]
    assert await sent(receiver.url("/a")) == Result(status)
    assert list(receiver.requests) == ["/a"]


@pytest.mark.parametrize(
    "addresses", [["127.0.0.1"], ["8.8.8.8", "10.0.0.1"], ["::ffff:127.0.0.1"], ["fe80::1"]]
)
async def test_a_name_of_a_private_address_gets_nothing(receiver, names, addresses):
    names["a.example.com"] = [addresses]
    assert await sent(f"http://a.example.com:{receiver.port}/a", networks=()) == Result(error=NOT_PUBLIC)
    assert receiver.requests == {}


async def test_a_name_that_leads_elsewhere_after_the_check_is_of_no_use(receiver, names):
    """The address is looked up once, and the connection is made to what was checked."""
    elsewhere = "127.0.0.2"
    server = await asyncio.start_server(lambda reader, writer: writer.close(), elsewhere, receiver.port)
    names["a.example.com"] = [["127.0.0.1"], [elsewhere]]
    async with server:
        assert await sent(f"http://a.example.com:{receiver.port}/a") == Result(200)
    assert names["a.example.com"] == [[elsewhere]]
    names["a.example.com"] = [[elsewhere], ["127.0.0.1"]]
    refused = await sent(f"http://a.example.com:{receiver.port}/a", networks=[ip_network("127.0.0.1/32")])
    assert refused == Result(error=NOT_PUBLIC)
    assert len(receiver.requests["/a"]) == 1


async def test_another_address_of_the_name_is_tried_where_the_first_takes_no_connection(receiver, names):
    names["a.example.com"] = [["127.0.0.3", "127.0.0.1"]]
    assert await sent(f"http://a.example.com:{receiver.port}/a") == Result(200)


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("http://nobody.example.com/", "the host's name is not known"),
        ("http://127.0.0.1:{free}/", "the connection was refused"),
        ("ftp://example.com", "url: found scheme 'ftp', expected https or http"),
    ],
)
async def test_what_has_no_answer_has_a_reason(receiver, names, url, error):
    await receiver.stop()
    assert await sent(url.format(free=receiver.port)) == Result(error=error)


async def test_an_answer_that_does_not_come_ends_with_the_limit(receiver):
    receiver.ways["/a"] = [NEVER]
    assert await sent(receiver.url("/a"), seconds=0.3) == Result(error="no answer within 0.3 s")


async def test_neither_the_body_of_an_answer_nor_endless_headers_are_read():
    """Headers beyond a limit break the attempt off; of a body without end nothing is awaited."""
    ways = {
        b"/body": b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n",
        b"/head": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100_000,
    }

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readline()).split(b" ")[1]
        writer.write(ways[path])
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        assert await sent(f"http://127.0.0.1:{port}/body") == Result(200)
        assert (await sent(f"http://127.0.0.1:{port}/head")).error.startswith("the endpoint broke off")


async def test_proxies_of_the_environment_are_passed_by(receiver, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert await sent(receiver.url("/a")) == Result(200)


def certificate(folder: Path, name: str) -> Path:
    """A certificate of this name that is its own authority, with its key."""
    key, subject = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = utc_now()
    signed = (
        x509.CertificateBuilder(subject, subject, key.public_key(), 1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=True)
        .sign(key, SHA256())
    )
    path = folder / "both.pem"
    raw = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(signed.public_bytes(Encoding.PEM) + raw)
    return path


async def test_tls_is_with_the_name_of_the_url_at_the_address_that_was_checked(names, monkeypatch, tmp_path):
    path = certificate(tmp_path, "a.example.com")
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(path)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No\r\nconnection: close\r\n\r\n")
        writer.close()

    names |= {"a.example.com": [["127.0.0.1"]], "b.example.com": [["127.0.0.1"]]}
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        assert await sent(f"https://a.example.com:{port}/") == Result(204)
        other = await sent(f"https://b.example.com:{port}/")
    assert other.error.startswith("the certificate is not valid for the host")


def test_a_look_up_takes_the_old_spellings_to_what_they_mean():
    """What C's functions make of them is checked like any other address."""
    for host in ("127.1", "2130706433", "0x7f.1", "0177.0.0.1"):
        assert module._look_up(host, 443) == ["127.0.0.1"]
    assert ip_address("127.0.0.1").is_loopback
