"""How every service runs: on one loop, where Kafka's client sees that a connection is gone (decision 0013)."""

import asyncio
import ctypes
import socket
from types import SimpleNamespace

import pytest
import uvloop
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.metadata import MetadataRequest

import shared.messaging.kafka  # noqa: F401  mends the client
from shared.service import serve
from shared.slow_clients import PacedConnection

PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4


@pytest.fixture
def prctl():
    """The kernel's; afterwards this process is what it was."""
    prctl = ctypes.CDLL(None).prctl
    before = prctl(PR_GET_DUMPABLE, 0, 0, 0, 0)
    yield prctl
    prctl(PR_SET_DUMPABLE, before, 0, 0, 0)


def test_every_service_runs_on_uvloop_and_keeps_its_memory_private(prctl):
    loops, dumpable = [], []

    async def app(scope, receive, send) -> None:
        loops.append(asyncio.get_running_loop())
        dumpable.append(prctl(PR_GET_DUMPABLE, 0, 0, 0, 0))
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "seen enough"})

    with pytest.raises(SystemExit):
        serve(app, SimpleNamespace(http_host="127.0.0.1", http_port=0))
    assert [type(loop) for loop in loops] == [uvloop.Loop]
    assert dumpable == [0]


def test_every_service_ends_connections_of_slow_clients(prctl, monkeypatch):
    options = {}
    monkeypatch.setattr("uvicorn.run", lambda app, **given: options.update(given))
    serve(None, SimpleNamespace(http_host="127.0.0.1", http_port=0))
    assert options["http"] is PacedConnection


@pytest.mark.parametrize("ask", [lambda c: c.send(MetadataRequest([])), lambda c: c._send_sasl_token(b"")])
def test_a_connection_that_has_just_been_lost_is_one(ask):
    uvloop.run(_ask_of_a_closed_transport(ask))


async def _ask_of_a_closed_transport(ask) -> None:
    ours, theirs = socket.socketpair()
    connection = AIOKafkaConnection("broker", 9092)
    connection._reader, connection._writer = await asyncio.open_connection(sock=ours)
    connection._read_task = asyncio.create_task(asyncio.Event().wait())
    connection._versions = {MetadataRequest.API_KEY: (0, 5)}
    theirs.close()
    connection._writer.transport.abort()
    assert await connection._reader.read() == b""
    with pytest.raises(KafkaConnectionError, match=r"broker:9092 broken: .* closed"):
        await asyncio.wait_for(ask(connection), 10)
    assert not connection.connected()
