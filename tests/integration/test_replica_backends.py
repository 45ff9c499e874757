"""One suite for what runs replicas: on this machine, and on the node of a lease; then what a node may ask for.

Postgres and S3 are real, and so are processes; a script runs in place of vLLM. The node is in this process, and HTTP
between it and the service's routes is a call.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import httpx
import pytest

from deploy.local.certificates import AUTHORITY, renew_authority
from deploy.local.stack import Stack
from schemas import layout
from schemas.object_requests import ObjectRequest
from services.serving_controller import protocol
from services.serving_controller.clients import guard
from services.serving_controller.clients.backend import ReplicaBackend, ReplicaFiles, ReplicaSpec
from services.serving_controller.clients.files import LocalFiles, ModelFiles
from services.serving_controller.clients.keys import ReplicaKeys
from services.serving_controller.clients.local import Engine, LocalBackend
from services.serving_controller.clients.pool import PoolBackend
from services.serving_controller.handlers.nodes import NodeDoor, Records
from services.serving_controller.model import Servable
from services.serving_controller.node import settings as node_settings
from services.serving_controller.node.node import Node
from services.serving_controller.settings import Settings
from shared.certificates import digest_of
from shared.clock import utc_now
from shared.model_files.tensors import BadModel
from shared.nodes.requests import LeaseObjects
from shared.postgres.migrate import migrate
from shared.processes.identity import Identity
from shared.replica_http import replica_client
from shared.service import Service
from shared.signatures import PrivateKey
from shared.storage.objects import ObjectStore
from shared.tls import Tls
from tests.integration.test_serving_controller import objects, put_a_base, write_adapter
from tests.stored import put_model
from tests.unit.shared.test_replica_http import serving
from tests.waiting import until

pytestmark = pytest.mark.stack
__all__ = ["objects"]

SCRIPT = """
import json, os, sys, time
from shared.device_leases.fence import end_with_lease
end_with_lease()
with open("seen.json.draft", "w") as file:
    json.dump({"pid": os.getpid(), "environment": dict(os.environ), "options": sys.argv[1:]}, file)
os.rename("seen.json.draft", "seen.json")
print("RuntimeError: out of memory", flush=True)
time.sleep(600)
"""
SERVER = (sys.executable, "-c", SCRIPT)
KEY, STRANGER = PrivateKey("1" * 64), PrivateKey("2" * 64)
DESCRIBED = {"state": "held", "device": "cpu"}


@dataclass
class Rig:
    """A backend with a replica's id of its own, and the folder in which its processes run."""

    backend: ReplicaBackend
    files: ReplicaFiles
    folder: Path
    replica_id: str
    base_sha: str
    objects: ObjectStore
    held: list[str] = field(default_factory=list)

    async def model(self) -> Path:
        return await self.path(lambda: self.files.model(self.replica_id, self.base_sha, None))

    async def path(self, ask: Callable[[], Any]) -> Path:
        """Ask as the rounds do, until the files are there."""
        paths: list[Path] = []

        async def is_there() -> bool:
            path = await ask()
            paths.extend([path] if path else [])
            return bool(paths)

        await until(is_there)
        return paths[0]

    async def spec(self, incarnation: str = "first", **changes: Any) -> ReplicaSpec:
        spec = ReplicaSpec(self.replica_id, incarnation, await self.model(), "tiny", 8)
        return replace(spec, **changes)

    async def started(self, incarnation: str = "first", **changes: Any) -> dict[str, Any]:
        """Start it; what its process has seen."""
        (self.folder / "seen.json").unlink(missing_ok=True)
        await self.backend.start(await self.spec(incarnation, **changes))
        await until((self.folder / "seen.json").exists)
        return json.loads((self.folder / "seen.json").read_text())

    async def until_dead(self) -> None:
        async def is_dead() -> bool:
            status = await self.backend.inspect(self.replica_id)
            return status is not None and not status.is_alive

        await until(is_dead)

    async def an_adapter(self, directory: Path, *, rank: int = 8) -> Servable:
        write_adapter(directory, gain=1.0, rank=rank)
        digest = await put_model(self.objects, directory, base_sha=self.base_sha)
        return Servable("mv-1", "ft:tiny:demo:1:x", "adapter", digest, "tiny", self.base_sha, rank)


@pytest.fixture
async def service(stack: Stack) -> AsyncIterator[Service]:
    await migrate("serving_controller", stack.postgres_dsn("serving_controller"))
    service = Service("serving_controller", settings_of(stack))
    await service.database.open()
    yield service
    await service.database.close()


def settings_of(stack: Stack) -> Settings:
    env = stack.service_env("serving_controller")
    values = {name.removeprefix("SERVING_CONTROLLER_").lower(): value for name, value in env.items()}
    return Settings(**values)


@pytest.fixture
async def base_sha(objects: ObjectStore, tmp_path: Path) -> str:
    return await put_a_base(objects, tmp_path / "base")


@dataclass
class World:
    """The routes of the controller, as a node reaches them, and the lease of one node."""

    stack: Stack
    door: NodeDoor
    folder: Path
    lease_id: str = field(default_factory=lambda: f"lease-{uuid4().hex[:8]}")
    replica_id: str = field(default_factory=lambda: f"serve-{uuid4().hex[:8]}-0")
    is_away: bool = False

    @property
    def node_id(self) -> str:
        return f"r-{self.lease_id}-e1-n0"

    async def hold(self, *, state: str = "held", key: str | None = KEY.public_key) -> None:
        conn = await asyncpg.connect(self.stack.postgres_dsn("serving_controller"))
        await conn.execute("DELETE FROM held_lease WHERE subject = $1", self.replica_id)
        node = json.dumps({"node_id": self.node_id, "public_key": key})
        query = "INSERT INTO held_lease (subject, lease_id, state, device, until, node) VALUES ($1, $2, $3, 'cpu', $4, $5)"
        until_then = utc_now() + timedelta(hours=1)
        await conn.execute(query, self.replica_id, self.lease_id, state, until_then, node)
        await conn.close()

    async def answer(self, request: httpx.Request) -> httpx.Response:
        if self.is_away:
            raise httpx.ConnectError("refused")
        routes = {protocol.ROUTE: self.door.report, protocol.OBJECTS_ROUTE: self.door.objects}
        status, content = await routes[request.url.path](dict(request.headers), request.content)
        return httpx.Response(status, content=content)

    def node(self, *, key: str = "1" * 64, **changes: Any) -> Node:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "key").write_text(key)
        settings = node_settings.Settings(
            serving_controller_url="http://controller",
            lease_id=changes.get("lease_id", self.lease_id),
            node_id=changes.get("node_id", self.node_id),
            work_dir=self.folder,
            cache_dir=self.folder / "cache",
            node_key_file=self.folder / "key",
            replica_argv=SERVER,
        )
        return Node(settings, http=httpx.AsyncClient(transport=httpx.MockTransport(self.answer)))


@pytest.fixture
async def world(stack: Stack, service: Service, tmp_path: Path) -> World:
    settings = settings_of(stack)
    world = World(stack, NodeDoor(service, settings, engine=Engine().options), tmp_path / "node")
    await world.hold()
    return world


async def turns(node: Node) -> None:
    while True:
        await node.turn()
        await asyncio.sleep(0.05)


@pytest.fixture
def tls() -> Tls:
    """What machines have; nothing, unless a class of tests says otherwise."""
    return Tls()


@pytest.fixture(params=["local", "pool"])
async def rig(request, service, world, objects, base_sha, tmp_path, tls) -> AsyncIterator[Rig]:
    keys = ReplicaKeys(tmp_path / "replicas", tmp_path / "keys")
    if request.param == "local":
        engine = Engine(server=SERVER, is_over_tls=tls.ca_file is not None)
        local = LocalBackend(tmp_path / "replicas", tmp_path / "keys", engine=engine)
        files = LocalFiles(ModelFiles(objects, scratch=tmp_path / "scratch"), local.folder)
        folder = tmp_path / "replicas" / world.replica_id
        yield Rig(local, files, folder, world.replica_id, base_sha, objects)
        await local.end(world.replica_id)
        return
    pool = PoolBackend(Records(service), keys, engine=Engine().options)
    turning = asyncio.create_task(turns(world.node()))
    folder = world.folder / "replicas" / "replica"
    yield Rig(pool, pool, folder, world.replica_id, base_sha, objects)
    await pool.end(world.replica_id)
    turning.cancel()
    with suppress(asyncio.CancelledError):
        await turning


class TestBackends:
    async def test_a_start_is_known_by_its_incarnation_and_ends_whole(self, rig: Rig):
        seen = await rig.started()
        status = await rig.backend.inspect(rig.replica_id)
        assert (status.incarnation, status.is_alive) == ("first", True)
        await until(lambda: _listens(rig))
        assert rig.replica_id in await rig.backend.list_owned()
        await rig.backend.end(rig.replica_id)
        assert Identity.of(seen["pid"]) is None
        assert await rig.backend.inspect(rig.replica_id) is None
        assert rig.replica_id not in await rig.backend.list_owned()
        await rig.backend.end(rig.replica_id)

    async def test_its_process_knows_the_digests_of_its_keys_alone(self, rig: Rig):
        environment = (await rig.started())["environment"]
        keys = [rig.backend.key(rig.replica_id), rig.backend.management_key(rig.replica_id)]
        assert environment[guard.INFERENCE_DIGEST] == guard.digest_of(keys[0])
        assert environment[guard.MANAGEMENT_DIGEST] == guard.digest_of(keys[1])
        assert not {*keys, "1" * 64} & {*environment.values()}

    async def test_it_is_started_with_the_options_of_the_controller(self, rig: Rig):
        spec = await rig.spec()
        options = (await rig.started(adapter_layers=("q_proj",)))["options"]
        assert {f"--model={spec.model_dir}", "--served-model-name=tiny", "--max-lora-rank=8"} <= {*options}
        assert options[-2:] == ["--lora-target-modules", "q_proj"]
        assert (await rig.backend.engine(rig.replica_id)).device == "cpu"

    async def test_a_death_is_seen_with_the_end_of_its_log(self, rig: Rig):
        seen = await rig.started()
        Identity.of(seen["pid"]).signal_alone(9)
        await rig.until_dead()
        assert await rig.backend.log_tail(rig.replica_id) == "RuntimeError: out of memory"

    async def test_files_are_verified_before_any_loader_sees_them(self, rig: Rig, tmp_path: Path):
        servable = await rig.an_adapter(tmp_path / "adapter")
        assert (await rig.model() / "config.json").is_file()
        path = await rig.path(lambda: rig.files.adapter(rig.replica_id, servable))
        assert sorted(each.name for each in path.iterdir()) == [
            "adapter_config.json",
            "adapter_model.safetensors",
        ]
        await rig.files.remove_adapter(rig.replica_id, servable.served_name)
        await until(lambda: not path.exists())
        again = await rig.path(lambda: rig.files.adapter(rig.replica_id, servable))
        assert again != path, "vLLM may have the old one open"

    async def test_files_that_are_not_what_was_meant_are_an_error_each_time(self, rig: Rig, tmp_path: Path):
        wrong = replace(await rig.an_adapter(tmp_path / "adapter"), rank=4)
        missing = replace(wrong, digest="f" * 64)
        await rig.model()
        for servable, error in ((wrong, BadModel), (missing, KeyError), (wrong, BadModel)):
            with pytest.raises(error):
                await rig.path(lambda each=servable: rig.files.adapter(rig.replica_id, each))


@pytest.mark.parametrize("rig", ["local"], indirect=True)
class TestOverTls:
    """Nodes of leases start replicas in the same way; S3 would have to speak TLS, too."""

    @pytest.fixture
    def tls(self, tmp_path: Path) -> Tls:
        renew_authority(tmp_path / "tls", now=utc_now())
        return Tls(ca_file=tmp_path / "tls" / AUTHORITY)

    async def test_each_start_has_a_certificate_of_its_own_which_its_address_names(self, rig: Rig):
        named = []
        for incarnation in ("first", "second"):
            options = (await rig.started(incarnation))["options"]
            [path] = [Path(each.partition("=")[2]) for each in options if each.startswith("--ssl-certfile=")]
            assert path.is_relative_to(rig.folder)
            assert path.stat().st_mode & 0o777 == 0o600
            digest = digest_of(path.read_bytes())
            await until(lambda digest=digest: _is_at(rig, f"#sha256={digest}"))
            named.append(digest)
            await rig.backend.end(rig.replica_id)
        assert len(set(named)) == 2

    async def test_it_serves_with_that_certificate(self, rig: Rig, tls: Tls):
        seen = await rig.started()
        options = dict(each.partition("=")[::2] for each in seen["options"])
        await until(lambda: _is_at(rig, "#sha256="))
        url = (await rig.backend.inspect(rig.replica_id)).url
        port = httpx.URL(url).port
        assert options["--port"] == str(port)
        async with serving(Path(options["--ssl-certfile"]), port=port) as server, replica_client(tls) as http:
            assert (await http.get(url)).text == "ok"
            assert len(server.heard) == 1


async def _is_at(rig: Rig, end: str) -> bool:
    status = await rig.backend.inspect(rig.replica_id)
    return status is not None and status.url.startswith("https://127.0.0.1:") and end in status.url


async def _listens(rig: Rig) -> bool:
    status = await rig.backend.inspect(rig.replica_id)
    return status is not None and status.url.startswith("http://127.0.0.1:")


def a_pool(service: Service, tmp_path: Path) -> PoolBackend:
    keys = ReplicaKeys(tmp_path / "replicas", tmp_path / "keys")
    return PoolBackend(Records(service), keys, engine=Engine().options)


class TestNodes:
    async def test_one_that_hears_nothing_goes_on_and_ends_with_its_lease(
        self, service, world, objects, base_sha, tmp_path
    ):
        pool, node = a_pool(service, tmp_path), world.node()
        rig = Rig(pool, pool, world.folder / "replicas/replica", world.replica_id, base_sha, objects)
        turning = asyncio.create_task(turns(node))
        seen = await rig.started()
        world.is_away = True
        await node.turn()
        assert Identity.of(seen["pid"]) is not None
        world.is_away = False
        await world.hold(state="ended")
        await until(lambda: Identity.of(seen["pid"]) is None)
        turning.cancel()

    async def test_one_of_another_lease_begins_with_nothing(
        self, service, world, objects, base_sha, tmp_path
    ):
        pool = a_pool(service, tmp_path)
        await world.node().turn()
        assert await pool.model(world.replica_id, base_sha, None) is None
        [record] = [each for each in await Records(service).list() if each.replica_id == world.replica_id]
        assert len(record.folders) == 1
        world.lease_id = f"{world.lease_id}-again"
        await world.hold()
        assert await Records(service).find(world.replica_id) is None
        await world.node().turn()
        again = await Records(service).find(world.replica_id)
        assert (again.lease_id, again.folders, again.start) == (world.lease_id, (), None)

    @pytest.mark.parametrize(
        ("changes", "problem"),
        [
            ({"key": "2" * 64}, "is not signed with its key"),
            ({"node_id": "r-other-e1-n0"}, "the lease's node is r-"),
            ({"lease_id": "lease-none"}, "lease lease-none is not held here"),
        ],
        ids=["key", "node", "lease"],
    )
    async def test_one_that_proves_nothing_is_given_nothing(self, service, world, capsys, changes, problem):
        node = world.node(**changes)
        await node.turn()
        assert problem in capsys.readouterr().out
        assert await Records(service).find(world.replica_id) is None

    async def test_one_reads_what_it_shall_have_and_nothing_else(self, service, world, base_sha, tmp_path):
        pool, node = a_pool(service, tmp_path), world.node()
        await node.turn()
        await pool.model(world.replica_id, base_sha, None)
        await node.turn()
        own, other = layout.base_model(base_sha), layout.base_model("e" * 64)
        asked = (
            ObjectRequest(operation="get", key=own),
            ObjectRequest(operation="get", key=other),
            ObjectRequest(operation="put", key=own, sha256="0" * 64, size_bytes=1),
            ObjectRequest(operation="get", key=layout.base_model(base_sha, "../../x")),
        )
        body = LeaseObjects(lease_id=world.lease_id, node_id=world.node_id, time=utc_now(), requests=asked)
        content = body.model_dump_json().encode()
        signature = {"retune-signature": KEY.signature_of(content)}
        status, answer = await world.door.objects(signature, content)
        answers = json.loads(answer)["answers"]
        assert (status, [bool(each["request"]) for each in answers]) == (200, [True, False, False, False])
        assert f"expected to read below base-models/{base_sha}/" in answers[1]["refused"]
        forged = {"retune-signature": STRANGER.signature_of(content)}
        assert (await world.door.objects(forged, content))[0] == 403
