"""Scoring on the node of a lease, in a pool of another backend (decision 0123), and the routes at which it reports.

Nothing is sent to a node: it asks, and is answered with what shall be scored. Any process of the service answers, and
any goes on where another one has stopped: work and reports are rows, an outcome is an object in S3.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from schemas import layout
from schemas.base import FileRef
from schemas.object_requests import NotAnswered, ObjectAnswers
from services.evaluator import store
from services.evaluator.clients.child import OnReport, ScoringCrashed
from services.evaluator.clients.files import Cache, keys_in
from services.evaluator.decide import nodes
from services.evaluator.handlers.devices import LOOK_SECONDS, Devices, DevicesLost
from services.evaluator.handlers.scoring import Scored
from services.evaluator.model import Evaluation, ScoringNode
from services.evaluator.protocol import MAX_OUTCOME_BYTES, Outcome, ScoringOrder, ScoringReport, Work
from services.evaluator.scoring.order import WorkOrder
from services.evaluator.scoring.reports import Report
from services.evaluator.scoring.rows import BadRows
from services.evaluator.settings import Settings
from shared.device_leases import holder
from shared.device_leases.lease import HeldLease
from shared.errors import CorruptObject
from shared.failpoints import failpoint
from shared.log import get_logger
from shared.nodes.answers import UNREADABLE, NodeAnswers, Refusal, answered
from shared.nodes.requests import LeaseObjects
from shared.postgres.database import false_if_unavailable
from shared.service import Service
from shared.storage.objects import ObjectStore
from shared.text import are_storable

log = get_logger(__name__)

MAX_LOST_NODES = 10
"""So many nodes may be lost with the same work before the next loss is a failure: a model may end its nodes."""


@dataclass
class Following:
    """What was taken in of a node's reports, and when."""

    lease: HeldLease
    began: float = field(default_factory=time.monotonic)
    reported_at: float = field(default_factory=time.monotonic)
    """When its newest report was read."""
    extended: float = field(default_factory=time.monotonic)
    report: ScoringReport | None = None
    ended: ScoringNode | None = None

    @property
    def progress(self) -> tuple[Report, ...]:
        return self.report.progress if self.report else ()


class NodeScoring:
    """Scoring by the program of `services/evaluator/node`."""

    asks_engines = False

    def __init__(
        self, service: Service, settings: Settings, *, objects: ObjectStore, cache: Cache, devices: Devices
    ) -> None:
        self._service = service
        self._settings = settings
        self._objects = objects
        self._cache = cache
        self._devices = devices

    async def score(
        self, evaluation: Evaluation, order: WorkOrder, files: Sequence[FileRef], on_report: OnReport
    ) -> Scored:
        work = Work(
            eval_id=evaluation.eval_id,
            order=order,
            files=tuple(files),
            threads=self._settings.scoring_threads,
            silence_seconds=self._settings.scoring_silence.total_seconds(),
            limit_seconds=self._settings.scoring_limit.total_seconds(),
        )
        async with self._service.unit() as unit:
            node = await store.save_work(unit.conn, work)
        failpoint("eval.work.saved")
        if node.outcome is None:
            node = await self._on_a_node(evaluation, work, on_report)
        await self._devices.give_back(evaluation)  # also where a process before this one could not
        scored = await self._believed(node, files)
        failpoint("eval.outcome.read")
        return scored

    async def forget(self, evaluation: Evaluation, order: WorkOrder) -> None:
        async with self._service.unit() as unit:
            node = await store.find_node(unit.conn, evaluation.eval_id)
        if node is not None and node.report is not None:
            await self._objects.delete([_key(node)])

    async def _on_a_node(self, evaluation: Evaluation, work: Work, on_report: OnReport) -> ScoringNode:
        """Have a node carry out the work. Its lease is kept where this process ends, or what it needs is away."""
        while True:
            lease = await self._devices.wait_for_node(evaluation, work.order.num_devices or 1)
            try:
                node = await self._follow(work, lease, on_report)
            except DevicesLost as loss:
                await self._devices.give_back(evaluation)
                await self._count(work, loss)
                raise
            except ScoringCrashed:
                await self._devices.give_back(evaluation)
                raise
            if node.outcome is not None:
                return node
            assert node.report is not None, "it was followed until it has reported its end"
            problem = f"node {node.report.node_id} cannot score this: {node.report.problem}"
            await self._devices.refuse(evaluation, lease, problem)

    async def _count(self, work: Work, loss: DevicesLost) -> None:
        async with self._service.unit() as unit:
            lost = await store.lose_node(unit.conn, work.eval_id)
        if lost > MAX_LOST_NODES:
            await self._drop(work.eval_id)
            raise ScoringCrashed(f"{lost} nodes were lost, the last one: {loss}") from loss

    async def _follow(self, work: Work, lease: HeldLease, on_report: OnReport) -> ScoringNode:
        """Extend the lease and hand on reports until the run has ended, or the node says that it cannot carry it out.

        Raises: DevicesLost, ScoringCrashed.
        """
        following = Following(lease)

        async def look() -> bool:
            await self._look(work, following, on_report)
            return True

        while following.ended is None:
            # Lease and node outlive an absence of Postgres that is shorter than what was confirmed.
            await false_if_unavailable(look())
            await asyncio.sleep(LOOK_SECONDS)
        return following.ended

    async def _look(self, work: Work, following: Following, on_report: OnReport) -> None:
        now = time.monotonic()
        async with self._service.unit() as unit:
            lease = await holder.find_by_id(unit.conn, following.lease.lease_id)
            node = await store.find_node(unit.conn, work.eval_id)
        if node is None or node.work != work:
            raise DevicesLost(f"{work.eval_id}: somebody else has ended what was to be scored")
        self._take(work, following, node, on_report)
        if following.ended is not None:
            return
        self._require(work, following, lease, now)
        if now - following.extended > self._devices.extend_every_seconds:
            await self._devices.extend(following.lease)
            following.extended = now

    def _take(self, work: Work, following: Following, node: ScoringNode, on_report: OnReport) -> None:
        """Take in the report of this lease's node."""
        report = node.report
        if report is None or report.lease_id != following.lease.lease_id or report == following.report:
            return
        for each in nodes.news(work.order, following.progress, report.progress):
            failpoint("eval.item.done")
            on_report(each)
        following.report, following.reported_at = report, time.monotonic()
        if report.order_sha256 == work.order.sha256 and (report.outcome or report.problem):
            following.ended = node

    def _require(self, work: Work, following: Following, lease: HeldLease | None, now: float) -> None:
        """Raise DevicesLost where the node is no longer the evaluation's, ScoringCrashed where it works too long."""
        if reason := nodes.why_lost(lease, now=self._service.clock()):
            raise DevicesLost(f"{work.eval_id}: {reason}")
        if now - following.reported_at > work.silence_seconds:
            raise DevicesLost(f"{work.eval_id}: its node has not reported for {work.silence_seconds:g} s")
        if now - following.began > work.silence_seconds + work.limit_seconds:
            raise ScoringCrashed(f"scoring is over its limit of {work.limit_seconds:g} s on its node")

    async def _believed(self, node: ScoringNode, files: Sequence[FileRef]) -> Scored:
        """Return what the node gives back. Raises ScoringCrashed if it is a crash, or cannot be; nothing is kept."""
        order = node.work.order
        paths = await self._cache.blobs(files)
        outcome, problem = Outcome(order_sha256=order.sha256), ""
        try:
            outcome = await self._read(node)
            has_parts = outcome.scores is not None and outcome.scores.parts
            keys = await asyncio.to_thread(keys_in, order.parts if has_parts else (), paths)
            problem = nodes.why_not_believed(order, outcome, keys)
        except (CorruptObject, KeyError, ValidationError, BadRows) as error:
            problem = f"{type(error).__name__}: {error}"
        if problem:
            assert node.report is not None, "it has reported an outcome"
            log.error("scores refused", node_id=node.report.node_id, problem=problem)
            problem = f"what node {node.report.node_id} gave back is refused: {problem}"
        if problem or outcome.scores is None:
            await self._objects.delete([_key(node)])
            await self._drop(node.eval_id)
            raise ScoringCrashed(problem or outcome.crash, log=outcome.log.encode())
        return Scored(outcome.scores, outcome.log.encode())

    async def _read(self, node: ScoringNode) -> Outcome:
        stored = node.outcome
        assert stored is not None, "it was reported"
        limit = min(stored.size_bytes, MAX_OUTCOME_BYTES)
        raw = await self._objects.get_bytes(_key(node), sha256=stored.sha256, limit_bytes=limit)
        return await asyncio.to_thread(Outcome.model_validate_json, raw)

    async def _drop(self, eval_id: str) -> None:
        """Forget the work with its outcome: another try begins with nothing."""
        async with self._service.unit() as unit:
            await store.forget_work(unit.conn, eval_id)


class ScoringRoutes:
    def __init__(self, service: Service, settings: Settings) -> None:
        self._service = service
        self._answers = NodeAnswers(service, settings, s3_endpoint=settings.nodes_s3_endpoint)

    async def report(self, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        """Keep what a node reports; answer with what it shall score."""
        return await answered(self._order(headers, body))

    async def objects(self, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        """Answer with requests that S3 lets pass, to read what the order names and to write its outcome."""
        return await answered(self._signed(headers, body))

    async def _order(self, headers: Mapping[str, str], body: bytes) -> ScoringOrder:
        report, lease = await self._answers.asked(ScoringReport, headers, body)
        if not are_storable(report.model_dump(mode="json")):
            raise Refusal(UNREADABLE, NotAnswered(error="found U+0000 or half a character, expected text"))
        async with self._service.database.transaction() as conn:
            node = await store.save_report(conn, nodes.eval_id_of(lease.subject), report)
        assert lease.until is not None, "a lease that is held was confirmed"
        return ScoringOrder(
            lease_seconds=max(0.0, (lease.until - self._service.clock()).total_seconds()),
            work=node.work if node else None,
        )

    async def _signed(self, headers: Mapping[str, str], body: bytes) -> ObjectAnswers:
        asked, lease = await self._answers.asked(LeaseObjects, headers, body)
        async with self._service.database.transaction() as conn:
            node = await store.find_node(conn, nodes.eval_id_of(lease.subject))
        return await self._answers.sign(
            asked, lambda request: nodes.why_not_allowed(request, node, lease.lease_id)
        )


def _key(node: ScoringNode) -> str:
    assert node.report is not None, "it has reported"
    return layout.evaluation_outcome(node.eval_id, node.report.lease_id)
