"""One suite for where scoring runs: on this machine, and on the node of a lease; then what a node may ask for and say.

Postgres and S3 are real, and so is the scoring child. The node is in this process, the provisioner's facts are written
by the test, and HTTP between the node and the service's routes is a call.
"""

import asyncio
import hashlib
import json
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

from deploy.local.stack import Stack
from schemas import layout
from schemas.base import FileRef
from schemas.job import Artifact, JobCancelled
from schemas.object_requests import ObjectRequest
from services.evaluator import protocol, store
from services.evaluator.clients.child import ScoringChild, ScoringCrashed
from services.evaluator.clients.files import Cache, keys_in
from services.evaluator.decide.nodes import subject_of
from services.evaluator.handlers import evaluations
from services.evaluator.handlers import nodes as module
from services.evaluator.handlers.answers import Answers
from services.evaluator.handlers.devices import Devices, DevicesLost
from services.evaluator.handlers.nodes import NodeScoring, ScoringRoutes
from services.evaluator.handlers.scoring import LocalScoring, Scoring
from services.evaluator.model import Evaluation
from services.evaluator.node import settings as node_settings
from services.evaluator.node.node import Node
from services.evaluator.protocol import Outcome, ScoringOrder, ScoringReport, StoredOutcome
from services.evaluator.scoring.order import (
    Candidate,
    HoldoutPart,
    ItemScore,
    PartScores,
    Probe,
    Scores,
    Side,
    WorkOrder,
)
from services.evaluator.scoring.reports import Loaded, PartProgressed, Report
from services.evaluator.settings import Settings
from shared.clock import utc_now
from shared.device import device_name
from shared.errors import Conflict, StorageUnavailable
from shared.nodes.lease_node import Holder, OrderMissing
from shared.postgres.migrate import migrate
from shared.service import Service
from shared.signatures import PrivateKey
from shared.storage.objects import ObjectStore
from tests.chaos.scale import at_night
from tests.integration import test_serving_controller
from tests.scoring.tiny import QUESTIONS, VOCABULARY, train_adapter
from tests.stored import put_base, put_model
from tests.tiny_model import build_tiny_model, template_text
from tests.unit.evaluator.evaluations import an_evaluation
from tests.waiting import until

pytestmark = [pytest.mark.stack, pytest.mark.torch]

objects = test_serving_controller.objects

KEY = PrivateKey("1" * 64)
POOL = "pool-of-scoring-nodes"
ROWS = [
    {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "alpha"}]}
    for text in QUESTIONS[:3]
]
PROBE = Probe(max_logit_change=1.0, nonzero_tensors=1, num_tensors=1)


@dataclass(frozen=True)
class Material:
    """What is scored, as it is in S3."""

    order: WorkOrder
    file: FileRef
    evaluation: Evaluation = field(
        default_factory=lambda: replace(an_evaluation(), eval_id=f"eval-{uuid4().hex[:10]}")
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    base = build_tiny_model(folder / "base", text=VOCABULARY)
    return base, train_adapter(base, folder / "adapter", [(QUESTIONS[0], "alpha")], steps=1)


@pytest.fixture
async def material(objects: ObjectStore, folders: tuple[Path, Path]) -> Material:
    base, adapter = folders
    raw = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    digest = hashlib.sha256(raw).hexdigest()
    await objects.put_bytes(layout.blob(digest), raw)
    template_sha256 = hashlib.sha256(template_text(base).encode()).hexdigest()
    base_sha = await put_base(objects, base, template_sha256=template_sha256)
    model = await put_model(objects, adapter, base_sha=base_sha)
    order = WorkOrder(
        base_path=f"base-models/{base_sha}",
        template_sha256=template_sha256,
        candidate=Candidate(kind="adapter", path=f"models/{model}", rank=8),
        parts=(HoldoutPart(name="holdout", path=layout.blob(digest), sides=(Side.BASE, Side.CANDIDATE)),),
        max_new_tokens=4,
        max_answer_tokens=4,
        device_name=device_name("cpu"),
    )
    return Material(order, FileRef(file_id="file-1", sha256=digest, size_bytes=len(raw)))


@dataclass
class World:
    """A process of the evaluator, its routes as nodes reach them, and the provisioner's word about leases."""

    service: Service
    settings: Settings
    conn: asyncpg.Pool
    folder: Path
    cache: Cache
    routes: ScoringRoutes
    node: Callable[[str], Any]
    """What runs on the node of a lease, by the lease's id; until it is cancelled."""
    nodes: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """By the ids of leases."""

    def scoring(self) -> NodeScoring:
        devices = Devices(self.service, self.settings.leases, device="cpu")
        return NodeScoring(
            self.service, self.settings, objects=self.service.objects, cache=self.cache, devices=devices
        )

    async def provide(self) -> None:
        """Give each lease that is asked for a node, as the provisioner does."""
        query = (
            "UPDATE held_lease SET state = 'held', device = 'cpu', until = $2, node = $3 WHERE lease_id = $1"
        )
        while True:
            asked = "SELECT lease_id FROM held_lease WHERE state = 'asked'"
            for lease_id in [row["lease_id"] for row in await self.conn.fetch(asked)]:
                described = json.dumps({"node_id": node_id(lease_id), "public_key": KEY.public_key})
                await self.conn.execute(query, lease_id, utc_now() + timedelta(hours=1), described)
                self.nodes[lease_id] = asyncio.create_task(self.node(lease_id))
            await asyncio.sleep(0.2)

    async def answer(self, request: httpx.Request) -> httpx.Response:
        routes = {protocol.REPORT_ROUTE: self.routes.report, protocol.OBJECTS_ROUTE: self.routes.objects}
        status, content = await routes[request.url.path](dict(request.headers), request.content)
        return httpx.Response(status, content=content)

    @property
    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self.answer))

    def node_settings(self, lease_id: str) -> node_settings.Settings:
        folder = self.folder / lease_id
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "key").write_text("1" * 64)
        return node_settings.Settings(
            evaluator_url="http://evaluator",
            lease_id=lease_id,
            node_id=node_id(lease_id),
            work_dir=folder,
            cache_dir=self.folder / "cache",
            node_key_file=folder / "key",
        )

    async def run_node(self, lease_id: str) -> None:
        """Run the node's program."""
        node = Node(self.node_settings(lease_id), http=self.http)
        try:
            while True:
                await node.turn()
                await asyncio.sleep(0.2)
        finally:
            await node._end()

    def holder(self, lease_id: str) -> Holder:
        """The evaluator, as a node that says whatever it wants reaches it."""
        routes = {"report_route": protocol.REPORT_ROUTE, "objects_route": protocol.OBJECTS_ROUTE}
        settings = self.node_settings(lease_id)
        return Holder(settings, "http://evaluator", service="evaluator", http=self.http, **routes)

    async def leases(self) -> dict[str, str]:
        """State of each lease, by its id."""
        return {row["lease_id"]: row["state"] for row in await self.conn.fetch("SELECT * FROM held_lease")}


def node_id(lease_id: str) -> str:
    return f"r-{lease_id}-e1-n0"


def report_of(lease_id: str, **changes: Any) -> ScoringReport:
    return ScoringReport(lease_id=lease_id, node_id=node_id(lease_id), time=utc_now(), **changes)


@pytest.fixture
async def world(stack: Stack, tmp_path: Path) -> AsyncIterator[World]:
    await migrate("evaluator", stack.postgres_dsn("evaluator"))
    env = stack.service_env("evaluator")
    values: dict[str, Any] = {name.removeprefix("EVALUATOR_").lower(): value for name, value in env.items()}
    values |= {"pool": POOL, "on_nodes": True, "device_name": device_name("cpu"), "scoring_threads": 1}
    settings = Settings(**values | {"scratch_dir": tmp_path / "scratch"})
    service = Service("evaluator", settings)
    await service.database.open()
    conn = await asyncpg.create_pool(stack.postgres_dsn("evaluator"), min_size=1, max_size=3)
    await conn.execute("DELETE FROM held_lease")
    cache = Cache(service.objects, settings.scratch_dir, max_bytes=10**12)
    world = World(
        service, settings, conn, tmp_path / "nodes", cache, ScoringRoutes(service, settings), _nothing
    )
    providing = asyncio.create_task(world.provide())
    yield world
    for task in (providing, *world.nodes.values()):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    await conn.execute("DELETE FROM held_lease")
    await conn.execute("DELETE FROM scoring_node")
    await conn.execute("DELETE FROM outbox")
    await conn.close()
    await service.database.close()


async def _nothing(lease_id: str) -> None:
    """A node that does not report."""


# Gates of other files score on this machine all day.
LOCAL = pytest.param("local", marks=at_night("a scoring process of its own, 7 s of processor time"))


@pytest.fixture(params=[LOCAL, "node"])
def scoring(request: pytest.FixtureRequest, world: World) -> Scoring:
    if request.param == "node":
        world.node = world.run_node
        return world.scoring()
    settings = world.settings
    child = ScoringChild(threads=1, silence=settings.scoring_silence, limit=settings.scoring_limit)
    devices = Devices(world.service, None, device="cpu")
    answers = Answers(world.service, settings, httpx.AsyncClient())
    return LocalScoring(world.cache, child, devices=devices, answers=answers)


class TestScoring:
    async def test_an_order_is_carried_out_with_its_progress_and_log_and_forgotten(
        self, scoring: Scoring, world: World, material: Material
    ):
        reports: list[Report] = []
        about = material.evaluation
        scored = await scoring.score(about, material.order, [material.file], reports.append)
        assert scored.scores.harness_version == material.order.harness_version
        parts = {(part.part, part.side): part for part in scored.scores.parts}
        assert sorted(parts) == [("holdout", Side.BASE), ("holdout", Side.CANDIDATE)]
        assert [len(part.items) for part in parts.values()] == [3, 3]
        assert {type(each) for each in reports} >= {Loaded, PartProgressed}
        [last] = [each for each in reports if isinstance(each, PartProgressed)][-1:]
        assert last.done == last.total
        await scoring.forget(about, material.order)
        assert list((world.folder.parent / "scratch" / "work").glob("*")) == []
        outcomes = await world.service.objects.list_objects(layout.evaluation(about.eval_id, ""))
        assert outcomes == []
        assert await world.leases() == {}


def scores_of(order: WorkOrder, world: World, material: Material) -> Scores:
    """Scores that are believed: every right answer is right."""
    keys = keys_in(order.parts, {layout.blob(material.file.sha256): world.folder.parent / "rows"})["holdout"]
    items = tuple(ItemScore(key=key, answer="alpha", numbers={"hits": 1.0}) for key in keys)
    parts = tuple(
        PartScores(part="holdout", side=side, expected=len(items), items=items, seconds=1.0)
        for side in (Side.BASE, Side.CANDIDATE)
    )
    return Scores(harness_version=order.harness_version, probe=PROBE, parts=parts)


@dataclass
class PlayedNode:
    """What a node does that is no program of ours: it takes the order, and gives this back."""

    world: World
    material: Material
    stored: dict[str, Any] = field(default_factory=dict)
    """What it says of its outcome in place of what is true."""
    outcome: dict[str, Any] = field(default_factory=dict)
    """Fields of its outcome in place of those that are believed."""
    report: dict[str, Any] = field(default_factory=dict)

    async def play(self, lease_id: str) -> None:
        world, order = self.world, self.material.order
        (world.folder.parent / "rows").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        scores = scores_of(order, world, self.material)
        outcome = Outcome(**{"order_sha256": order.sha256, "scores": scores, "log": "it ran"} | self.outcome)
        holder, raw = world.holder(lease_id), outcome.model_dump_json().encode()
        await holder.report(report_of(lease_id), ScoringOrder)
        key = layout.evaluation_outcome(self.material.evaluation.eval_id, lease_id)
        digest = await holder.objects.put_bytes(key, raw)
        stored = StoredOutcome(**{"sha256": digest, "size_bytes": len(raw)} | self.stored)
        report = report_of(lease_id, **{"order_sha256": order.sha256, "outcome": stored} | self.report)
        await holder.report(report, ScoringOrder)


async def score(
    world: World, material: Material, on_report: Callable[[Report], None] = lambda _: None
) -> Any:
    return await world.scoring().score(material.evaluation, material.order, [material.file], on_report)


class TestWhatANodeGivesBack:
    async def test_is_believed_where_it_may_be(self, world: World, material: Material):
        world.node = PlayedNode(world, material).play
        scored = await score(world, material)
        assert (len(scored.scores.parts), scored.log) == (2, b"it ran")

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"stored": {"sha256": "0" * 64}}, "CorruptObject"),
            ({"outcome": {"scores": None}}, "neither scores nor a reason"),
            ({"outcome": {"scores": None, "crash": "out of memory"}}, "out of memory"),
        ],
        ids=["digest", "form", "crash"],
    )
    async def test_costs_a_try_and_is_removed_where_it_cannot_be(
        self, world: World, material: Material, changes: dict[str, Any], reason: str
    ):
        world.node = PlayedNode(world, material, **changes).play
        with pytest.raises(ScoringCrashed, match=reason):
            await score(world, material)
        eval_id = material.evaluation.eval_id
        assert await world.service.objects.list_objects(layout.evaluation(eval_id, "")) == []
        async with world.service.unit() as unit:
            assert await store.find_node(unit.conn, eval_id) is None, "the next try begins with nothing"
        assert await world.leases() == {}

    async def test_is_read_again_after_a_death_and_nothing_is_scored_twice(
        self, world: World, material: Material
    ):
        world.node = PlayedNode(world, material).play
        first = await score(world, material)
        query = "INSERT INTO held_lease (subject, lease_id, state) VALUES ($1, 'left', 'held')"
        await world.conn.execute(query, subject_of(material.evaluation.eval_id))
        assert await score(world, material) == first
        assert (len(world.nodes), await world.leases()) == (1, {}), "nobody else gives back what was left"

    async def test_is_taken_over_by_another_process_on_the_same_lease(self, world: World, material: Material):
        released = asyncio.Event()

        async def play(lease_id: str) -> None:
            await world.holder(lease_id).report(report_of(lease_id), ScoringOrder)
            await released.wait()
            await PlayedNode(world, material).play(lease_id)

        world.node = play
        stopping = asyncio.create_task(score(world, material))
        await until(lambda: bool(world.nodes))
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        [(lease_id, state)] = (await world.leases()).items()
        assert state == "held", "who stops leaves the node to who continues"
        released.set()
        assert (await score(world, material)).log == b"it ran"
        assert [*world.nodes] == [lease_id]


class TestANodeThatIsLost:
    async def test_costs_no_try_until_too_many_were(
        self, world: World, material: Material, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(module, "MAX_LOST_NODES", 1)
        followed: list[Report] = []

        async def lose(lease_id: str) -> None:
            report = report_of(lease_id, progress=(Loaded(device=lease_id),))
            await world.holder(lease_id).report(report, ScoringOrder)
            await until(lambda: Loaded(device=lease_id) in followed)
            query = "UPDATE held_lease SET state = 'refused', reason = 'n7 was lost' WHERE lease_id = $1"
            await world.conn.execute(query, lease_id)

        world.node = lose
        with pytest.raises(DevicesLost, match="n7 was lost"):
            await score(world, material, followed.append)
        with pytest.raises(ScoringCrashed, match=r"2 nodes were lost, the last one: .*n7 was lost"):
            await score(world, material, followed.append)

    async def test_is_one_that_does_not_report(self, world: World, material: Material):
        world.settings = world.settings.model_copy(update={"scoring_silence": timedelta(seconds=0)})
        with pytest.raises(DevicesLost, match="its node has not reported for 0 s"):
            await score(world, material)
        assert await world.leases() == {}

    async def test_or_one_whose_evaluation_was_cancelled(self, world: World, material: Material):
        """The message gives the lease back: a node would go on without the task."""
        about = material.evaluation
        artifact = Artifact.model_validate(about.artifact.model_dump())
        eval_id = evaluations._evaluation_of(artifact)
        cancelled = replace(material, evaluation=replace(about, eval_id=eval_id))
        scoring = asyncio.create_task(score(world, cancelled))
        await until(lambda: bool(world.nodes))
        async with world.service.unit() as unit:
            fact = JobCancelled(
                job_id=artifact.job_id, tenant=artifact.tenant, reason="user", artifact=artifact
            )
            await evaluations.job_cancelled(fact, unit)
        assert await world.leases() == {}
        with pytest.raises(DevicesLost, match="somebody else has ended"):
            await scoring
        [lease_id] = world.nodes
        with pytest.raises(OrderMissing, match="is not held here"):
            await world.holder(lease_id).report(report_of(lease_id), ScoringOrder)

    async def test_one_of_another_product_is_shown_and_another_is_asked_for(
        self, world: World, material: Material, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("services.evaluator.handlers.devices.ASK_AGAIN_SECONDS", 0.0)
        other = {"outcome": None, "problem": "its harness is 'x', expected 'y'"}
        players = [PlayedNode(world, material, report=other), PlayedNode(world, material)]

        async def play(lease_id: str) -> None:
            await players.pop(0).play(lease_id)

        world.node = play
        assert (await score(world, material)).log == b"it ran"
        assert len(world.nodes) == 2
        delayed = [row["value"] for row in await world.conn.fetch("SELECT value FROM outbox")]
        assert any(b"cannot score this: its harness is" in bytes(value) for value in delayed)


class TestWhatANodeMayAskFor:
    @pytest.fixture
    async def holder(self, world: World, material: Material) -> AsyncIterator[Holder]:
        scoring = asyncio.create_task(score(world, material))
        await until(lambda: bool(world.nodes))
        [self.lease_id] = world.nodes
        yield world.holder(self.lease_id)
        scoring.cancel()
        await asyncio.gather(scoring, return_exceptions=True)

    async def test_is_what_its_order_names_and_its_own_outcome_once(
        self, world: World, material: Material, holder: Holder
    ):
        eval_id, order = material.evaluation.eval_id, material.order
        read = holder.objects.get_bytes
        assert await read(layout.blob(material.file.sha256))
        assert await read(f"{order.base_path}/{layout.MANIFEST}")
        assert await read(f"{order.candidate.path}/{layout.MANIFEST}")
        for key in (
            layout.blob("e" * 64),
            layout.base_model("e" * 64),
            layout.evaluation(eval_id, "log.txt"),
        ):
            with pytest.raises(StorageUnavailable, match="not what the node may do"):
                await read(key)
        own = layout.evaluation_outcome(eval_id, self.lease_id)
        for key in (
            layout.evaluation_outcome(eval_id, "another-lease"),
            layout.evaluation_outcome("eval-other", self.lease_id),
            layout.blob(material.file.sha256),
        ):
            with pytest.raises(StorageUnavailable, match="not what the node may do"):
                await holder.objects.put_bytes(key, b"{}")
        await holder.objects.put_bytes(own, b"{}")
        with pytest.raises(Conflict):
            await holder.objects.put_bytes(own, b"[]")
        [page] = await world.service.objects.list_objects(layout.evaluation(eval_id, ""))
        assert page.key == own

    async def test_is_no_outcome_of_any_size(self, world: World, material: Material, holder: Holder):
        key = layout.evaluation_outcome(material.evaluation.eval_id, self.lease_id)
        size = protocol.MAX_OUTCOME_BYTES + 1
        asked = ObjectRequest(operation="put", key=key, sha256="0" * 64, size_bytes=size)
        with pytest.raises(StorageUnavailable, match=f"{size} bytes, expected one whole object"):
            await holder.objects._signer.sign(asked)

    @pytest.mark.parametrize(
        ("changes", "problem"),
        [
            ({"node_id": "r-other"}, "the lease's node is r-"),
            ({"lease_id": "scoring-eval-other"}, "is not held here"),
            ({"problem": "\0"}, "expected text"),
        ],
        ids=["node", "lease", "no text"],
    )
    async def test_is_nothing_where_it_proves_nothing_or_says_what_is_none(
        self, world: World, holder: Holder, changes: dict[str, Any], problem: str
    ):
        report = report_of(self.lease_id).model_copy(update=changes)
        with pytest.raises(OrderMissing, match=problem):
            await holder.report(report, ScoringOrder)
