"""Chats under way, on real sockets of the server that every service runs: they have in_flight, and give them back."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from schemas.specification import Tier
from services.gateway import deps
from services.gateway.access import Principal
from services.gateway.errors import install
from services.gateway.quotas import Quotas
from services.gateway.rates import InFlight
from services.gateway.routes import chat
from shared import slow_clients
from shared.slow_clients import PacedConnection
from tests.waiting import until

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


class Replica(httpx.AsyncBaseTransport):
    """Streams without end, or answers once it may."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.open_streams = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if json.loads(request.content).get("stream"):
            return httpx.Response(200, stream=Endless(self))
        await self.may_answer.wait()
        return httpx.Response(200, json={"model": "served", "choices": []})


class Endless(httpx.AsyncByteStream):
    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        replica.open_streams += 1

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            await asyncio.sleep(0)
            yield b"data: " + b"x" * 16_384 + b"\n\n"

    async def aclose(self) -> None:
        self._replica.open_streams -= 1


class Site:
    def __init__(self, keys_dir: Any, replica: Replica) -> None:
        self.replica = replica
        self.in_flight = InFlight("inference_requests", of_all=10)
        settings = SimpleNamespace(replica_keys_dir=keys_dir)
        http = httpx.AsyncClient(transport=replica)
        self.gateway = SimpleNamespace(settings=settings, http=http, inference_requests=self.in_flight)
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/chat/completions"


@pytest.fixture
async def site(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    async def targets(*_: Any) -> list[chat.Target]:
        return [chat.Target("replica-1", "http://replica", "served")]

    async def has_template(*_: Any) -> None:
        """It has one."""

    monkeypatch.setattr(chat, "_targets", targets)
    monkeypatch.setattr(chat, "_require_template", has_template)
    monkeypatch.setattr(slow_clients, "LOOK_SECONDS", 0.05)
    (tmp_path / "replica-1").write_text("key")
    site = Site(tmp_path, Replica())
    app = FastAPI()
    app.include_router(chat.router)
    install(app)
    app.dependency_overrides[deps.gateway] = lambda: site.gateway
    quotas = Quotas(inference_requests=1)
    app.dependency_overrides[deps.principal] = lambda: Principal("acme", Tier.STANDARD, quotas)
    config = uvicorn.Config(app, port=0, log_level="error", lifespan="off", http=PacedConnection)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    site.port = server.servers[0].sockets[0].getsockname()[1]
    yield site
    server.should_exit = server.force_exit = True
    await serving


def is_under_way(site: Site) -> bool:
    return bool(site.in_flight._counts)


async def require_refused(http: httpx.AsyncClient, site: Site) -> None:
    answer = await http.post(site.url, json=CHAT)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (
        429,
        "quota_exceeded",
        "inference_requests",
    )
    assert answer.headers["retry-after"] == "5"


async def test_a_stream_has_a_place_until_its_client_goes(site: Site):
    async with httpx.AsyncClient() as http:
        async with http.stream("POST", site.url, json=CHAT | {"stream": True}) as stream:
            assert stream.status_code == 200
            await require_refused(http, site)
        await until(lambda: not is_under_way(site) and not site.replica.open_streams)


async def test_an_answer_has_a_place_until_it_is_there(site: Site):
    async with httpx.AsyncClient() as http:
        asking = asyncio.create_task(http.post(site.url, json=CHAT))
        await until(lambda: is_under_way(site))
        await require_refused(http, site)
        site.replica.may_answer.set()
        assert (await asking).json()["model"] == "tiny"
        assert not is_under_way(site)


async def test_who_does_not_read_its_stream_loses_it_and_the_replica_is_left(site: Site):
    body = json.dumps(CHAT | {"stream": True}).encode()
    head = b"POST /chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", site.port))
        await loop.sock_sendall(client, head + body)
        await until(lambda: site.replica.open_streams == 1)
        await until(lambda: not is_under_way(site) and not site.replica.open_streams)
