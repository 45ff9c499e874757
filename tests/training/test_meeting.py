"""How the processes of a gang meet: through the doors of their runners, with torch's own store, and nobody else's way in."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from torch.distributed import DistError, Store, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousParameters

from schemas.base import DatasetRef
from schemas.specification import Recipe
from schemas.training import Member, StartTraining
from services.trainer_agent.protocol import RENDEZVOUS
from services.trainer_agent.runner import gang
from services.trainer_agent.runner.gang import LOOPBACK, OwnCertificate, Stream, meeting
from services.trainer_agent.runner.settings import Settings
from services.trainer_agent.training.launch import create
from shared.ports import free_port
from tests.builders import a_sha

pytestmark = pytest.mark.torch

FIRST_HOST = "127.0.0.2"
"""Of node 0: an address of this machine that is not the store's."""
SECONDS = timedelta(seconds=20)


@dataclass
class Node:
    settings: Settings
    certificate: OwnCertificate


def a_node(folder: Path, index: int, monkeypatch: pytest.MonkeyPatch) -> Node:
    values = {
        "KAFKA_BOOTSTRAP": "127.0.0.1:9",
        "KAFKA_USERNAME": "runner",
        "KAFKA_PASSWORD": "x",
        "TRAINER_AGENT_URL": "http://127.0.0.1:9",
        "JOB_ID": "ftjob-1",
        "TENANT": "acme",
        "ATTEMPT": "1",
        "NODE_INDEX": str(index),
        "NODE_ID": f"a-ftjob-1-e1-n{index}",
        "WORK_DIR": str(folder / str(index)),
        "NOTICE_FILE": str(folder / "notice"),
        "NODE_KEY_FILE": str(folder / "key"),
        "CACHE_DIR": str(folder),
        "HOST": FIRST_HOST if index == 0 else LOOPBACK,
    }
    for name, value in values.items():
        monkeypatch.setenv(f"RUNNER_{name}", value)
    settings = Settings()
    settings.work_dir.mkdir()
    return Node(settings, OwnCertificate(settings.work_dir, node_id=settings.node_id))


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Node]:
    return [a_node(tmp_path, index, monkeypatch) for index in range(2)]


@pytest.fixture
def start(nodes: list[Node]) -> StartTraining:
    members = tuple(
        Member(
            node_index=index,
            host=node.settings.host,
            port=free_port(node.settings.host),
            certificate=node.certificate.text,
        )
        for index, node in enumerate(nodes)
    )
    return StartTraining(
        job_id="ftjob-1",
        tenant="acme",
        attempt=1,
        recipe=Recipe(),
        base_sha=a_sha("tiny"),
        dataset=DatasetRef(version=a_sha("dataset"), manifest_sha256=a_sha("manifest")),
        config_hash=a_sha("config"),
        resume=None,
        nodes=2,
        devices_per_node=1,
        members=members,
        grace_seconds=30,
    )


def store_of(port: int, rank: int) -> Store:
    """As torchrun asks for it on a node."""
    parameters = RendezvousParameters(
        RENDEZVOUS, f"{LOOPBACK}:{port}", "run", 2, 2, rank=str(rank), timeout="60"
    )
    return create(parameters).next_rendezvous().store


@asynccontextmanager
async def met(nodes: list[Node], start: StartTraining) -> AsyncIterator[list[Store]]:
    """The stores of both nodes, once they have met."""
    async with AsyncExitStack() as stack:
        ports = [
            await stack.enter_async_context(meeting(node.settings, start, node.certificate)) for node in nodes
        ]
        joining = [asyncio.to_thread(store_of, port, rank) for rank, port in enumerate(ports)]
        yield await asyncio.gather(*joining)


async def exchange(stores: list[Store], word: str) -> None:
    await asyncio.to_thread(stores[0].set, "word", word)
    assert await asyncio.to_thread(stores[1].get, "word") == word.encode()


def addresses_listened_at() -> set[tuple[str, int]]:
    listening = psutil.Process().net_connections("tcp")
    return {tuple(each.laddr) for each in listening if each.status == psutil.CONN_LISTEN}


async def test_a_store_that_is_reached_tells_all_and_takes_all():
    """Of torch, and why it is behind a door: a secret prefix of its keys would be listed to whoever asks."""
    port = free_port()
    store = TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False)
    store.set("/secret-of-the-gang/address of rank 0", "10.0.0.1")
    intruder = TCPStore(LOOPBACK, port, is_master=False, timeout=SECONDS)
    [key] = [key for key in intruder.list_keys() if "secret" in key]
    assert intruder.get(key) == b"10.0.0.1"
    intruder.set(key, "10.6.6.6")
    assert store.get("/secret-of-the-gang/address of rank 0") == b"10.6.6.6"
    assert intruder.delete_key(key)


async def test_nodes_meet_and_the_store_is_at_no_address_of_the_network(nodes, start):
    before = addresses_listened_at()
    async with met(nodes, start) as stores:
        await exchange(stores, "hello")
        opened = addresses_listened_at() - before
        assert {address for address in opened if address[0] != LOOPBACK} == {
            (FIRST_HOST, start.members[0].port)
        }
    assert not addresses_listened_at() & {(FIRST_HOST, start.members[0].port)}


async def bytes_after(stream: Stream, sent: bytes) -> bytes:
    """What comes back before the other side ends the connection."""
    reader, writer = stream
    try:
        writer.write(sent)
        return await asyncio.wait_for(reader.read(), gang.HANDSHAKE_SECONDS / 2)
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


def without_a_certificate() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def ask_store(port: int, host: str = LOOPBACK) -> bytes:
    """What the store has for `word`, as torch's own client is told it. Raises DistError where it does not get in."""

    def ask() -> bytes:
        answer: bytes = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=2)).get("run/word")
        return answer

    return await asyncio.to_thread(ask)


@pytest.mark.parametrize("shown", ["no certificate", "a certificate of node 1's name"])
async def test_who_has_no_certificate_of_the_gang_does_not_reach_its_store(nodes, start, tmp_path, shown):
    """Whoever it is, an older attempt's node too: what StartTraining names are this gang's certificates alone."""
    first = start.members[0]
    stranger = OwnCertificate(tmp_path, node_id=nodes[1].settings.node_id)
    contexts = {
        "no certificate": without_a_certificate(),
        "a certificate of node 1's name": stranger.client_context(nodes[0].certificate.text),
        "node 1's": nodes[1].certificate.client_context(nodes[0].certificate.text),
    }
    async with met(nodes, start) as stores:
        await exchange(stores, "secret")
        words: dict[str, bytes | None] = {}
        for name in (shown, "node 1's"):
            door = gang.Door(gang._as_it_is, gang._connection(first.host, first.port, contexts[name]))
            port = await door.open(LOOPBACK, 0)
            try:
                words[name] = await ask_store(port)
            except DistError:
                words[name] = None
            await door.close()
        assert words == {shown: None, "node 1's": b"secret"}


async def test_plain_text_does_not_reach_the_store(nodes, start):
    first = start.members[0]
    async with met(nodes, start) as stores:
        with pytest.raises(DistError):
            await ask_store(first.port, first.host)
        await exchange(stores, "undisturbed")


async def test_who_answers_in_the_place_of_node_0_hears_nothing(nodes, start, tmp_path):
    first, heard = start.members[0], []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(1))
        writer.close()

    stranger = OwnCertificate(tmp_path, node_id=nodes[0].settings.node_id)
    context = stranger.server_context([node.certificate.text for node in nodes])
    impostor = await asyncio.start_server(listen, first.host, first.port, ssl=context)
    async with meeting(nodes[1].settings, start, nodes[1].certificate) as port:
        stream = await asyncio.open_connection(LOOPBACK, port)
        stream[1].write(b"a key and its value")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream[0].read(1), 3)
        assert heard == []
        stream[1].transport.abort()
    impostor.close()
    async with met(nodes, start) as stores:
        await exchange(stores, "hello")


async def test_many_who_show_nothing_hold_no_more_than_so_many_connections(nodes, start):
    first = start.members[0]
    async with met(nodes, start) as stores:
        silent = [await asyncio.open_connection(first.host, first.port) for _ in range(gang.MAX_UNPROVED)]
        one_more = await asyncio.open_connection(first.host, first.port)
        assert await bytes_after(one_more, b"") == b""
        await exchange(stores, "undisturbed")
        for _, writer in silent:
            writer.transport.abort()


async def test_with_a_runner_of_an_older_release_all_meet_as_it_does(nodes, start):
    older = start.members[1].model_copy(update={"certificate": None})
    mixed = start.model_copy(update={"members": (start.members[0], older)})
    async with meeting(nodes[0].settings, mixed, nodes[0].certificate) as port:
        assert port is None


async def test_a_runner_that_starts_again_has_the_certificate_that_it_reported(nodes):
    again = OwnCertificate(nodes[0].settings.work_dir, node_id="another")
    assert again.text == nodes[0].certificate.text
    assert (nodes[0].settings.work_dir / "gang.pem").stat().st_mode & 0o777 == 0o600
