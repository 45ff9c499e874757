"""How every service runs: on one loop, where Kafka's client sees that a connection is gone (decision 0013)."""

import asyncio
import contextlib
import ctypes
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace

import httpx
import pytest
import uvicorn
import uvloop
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.metadata import MetadataRequest

import shared.messaging.kafka  # noqa: F401  patches the client
from shared import server
from shared.ports import free_port
from shared.server import Server, serve
from shared.slow_clients import PacedConnection
from shared.tls import Tls
from tests.waiting import PATIENCE_SECONDS

PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4
SETTINGS = SimpleNamespace(http_host="127.0.0.1", http_port=0, tls=Tls(), listener_of_nodes=None)


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
        serve(app, SETTINGS)
    assert [type(loop) for loop in loops] == [uvloop.Loop]
    assert dumpable == [0]


@pytest.fixture
def config(prctl, monkeypatch) -> uvicorn.Config:
    """The configuration of a service's server."""
    configs = []
    monkeypatch.setattr(Server, "run", lambda server: configs.append(server.config))
    with pytest.raises(SystemExit):
        serve(None, SETTINGS)
    return configs[0]


def test_every_service_ends_connections_of_slow_clients(config):
    assert config.http is PacedConnection


def test_every_service_keeps_idle_connections_longer_than_clients_do(config):
    of_go = 90
    assert config.timeout_keep_alive > max(httpx.Limits().keepalive_expiry, of_go)


PROGRAM = """
import asyncio, socket
from types import SimpleNamespace
from shared import server
from shared.settings import Address
from shared.tls import Tls

ends = asyncio.Event()

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        print("up", flush=True)
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"%d " % scope["server"][1], "more_body": True})
    await (ends.wait() if scope["path"] == "/until-stop" else asyncio.Event().wait())
    await send({"type": "http.response.body", "body": b"ended", "more_body": False})

server.STOP_SECONDS = 1
settings = SimpleNamespace(http_host="127.0.0.1", http_port=PORT, tls=Tls(), listener_of_nodes=OF_NODES)
server.serve(app, settings, on_stop=ends.set)
"""


@pytest.mark.parametrize(("path", "ends_whole"), [("/until-stop", True), ("/for-ever", False)])
def test_a_process_that_is_asked_to_stop_does_so_with_streams_open(tmp_path, path, ends_whole):
    port = free_port()
    argv = [sys.executable, "-c", program(port)]
    with (
        subprocess.Popen(argv, stdout=subprocess.PIPE) as process,
        httpx.Client(timeout=PATIENCE_SECONDS) as client,
    ):
        assert process.stdout.readline() == b"up\n"
        answer = client.send(client.build_request("GET", until_listening(port, path)), stream=True)
        parts = answer.iter_bytes()
        assert next(parts) == f"{port} ".encode()
        process.send_signal(signal.SIGTERM)
        if ends_whole:
            assert b"".join(parts) == b"ended"
        else:
            with pytest.raises(httpx.RemoteProtocolError):
                next(parts)
        assert process.wait(timeout=PATIENCE_SECONDS) == -signal.SIGTERM


def program(port: int, second: str = "None") -> str:
    return PROGRAM.replace("PORT", str(port)).replace("OF_NODES", second)


@contextlib.contextmanager
def two_listeners():
    """Yield the ports of a process with a second listener, which ends when it is asked to."""
    port, second = free_port(), free_port()
    argv = [sys.executable, "-c", program(port, f"Address('127.0.0.1', {second})")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"up\n"
        yield port, second
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE_SECONDS) == -signal.SIGTERM


def test_a_second_listener_is_answered_by_the_same_process_and_stops_with_it():
    with two_listeners() as ports, contextlib.ExitStack() as streams:
        begun = []
        for port in ports:
            url = until_listening(port, "/until-stop")
            parts = streams.enter_context(httpx.stream("GET", url, timeout=PATIENCE_SECONDS)).iter_bytes()
            begun.append(next(parts))
        assert begun == [f"{port} ".encode() for port in ports], "each by its own port"


def test_neither_listener_takes_a_connection_while_answers_end():
    port, second = free_port(), free_port()
    longer = program(port, f"Address('127.0.0.1', {second})").replace("STOP_SECONDS = 1", "STOP_SECONDS = 3")
    with subprocess.Popen([sys.executable, "-c", longer], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"up\n"
        with httpx.stream("GET", until_listening(second, "/for-ever"), timeout=PATIENCE_SECONDS) as answer:
            assert next(answer.iter_bytes()) == f"{second} ".encode()
            process.send_signal(signal.SIGTERM)
            for each in (port, second):
                until_refused(each)
            assert process.poll() is None, "an answer is under way"


def until_refused(port: int) -> None:
    with contextlib.suppress(ConnectionRefusedError, ConnectionResetError):
        while True:
            socket.create_connection(("127.0.0.1", port)).close()


def test_a_port_that_is_taken_for_the_second_listener_ends_the_process():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"Address('127.0.0.1', {taken.getsockname()[1]})"
        argv = [sys.executable, "-c", program(free_port(), address)]
        assert subprocess.run(argv, check=False, timeout=PATIENCE_SECONDS).returncode == server.START_FAILED


def until_listening(port: int, path: str) -> str:
    while True:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return f"http://127.0.0.1:{port}{path}"


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
