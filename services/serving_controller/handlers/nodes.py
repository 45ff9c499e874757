"""The routes at which nodes of replicas report and are given their orders, and signed requests to S3.

Any process of the service answers: reports and orders are rows.
"""

from collections.abc import Mapping

from schemas.object_requests import NotAnswered, ObjectAnswers
from services.serving_controller import store
from services.serving_controller.decide import nodes
from services.serving_controller.model import NodeRecord
from services.serving_controller.protocol import EngineOptions, NodeOrder, NodeReport
from services.serving_controller.settings import Settings
from shared.log import get_logger
from shared.nodes.access import why_not_read
from shared.nodes.answers import REFUSED, NodeAnswers, Refusal, answered
from shared.nodes.requests import LeaseObjects
from shared.service import Service

log = get_logger(__name__)


class Records:
    """NodeRecords in Postgres."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def find(self, replica_id: str) -> NodeRecord | None:
        async with self._service.database.transaction() as conn:
            return await store.find_node(conn, replica_id)

    async def list(self) -> list[NodeRecord]:
        async with self._service.database.transaction() as conn:
            return await store.list_nodes(conn)

    async def save_order(self, record: NodeRecord) -> None:
        async with self._service.unit() as unit:
            await store.save_order(unit.conn, record)

    async def forget_ended(self) -> None:
        async with self._service.unit() as unit:
            await store.forget_nodes(unit.conn)


class NodeDoor:
    def __init__(self, service: Service, settings: Settings, *, engine: EngineOptions) -> None:
        self._service = service
        self._answers = NodeAnswers(service, settings, s3_endpoint=settings.nodes_s3_endpoint)
        self._engine = engine

    async def report(self, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        """Keep what a node reports; answer with what shall be there."""
        return await answered(self._order(headers, body))

    async def objects(self, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        """Answer with requests that S3 lets pass, to read what shall be on the node."""
        return await answered(self._signed(headers, body))

    async def _order(self, headers: Mapping[str, str], body: bytes) -> NodeOrder:
        report, lease = await self._answers.asked(NodeReport, headers, body)
        if reason := nodes.why_not_its_address(lease, report):
            log.warning("node refused", node_id=report.node_id, reason=reason)
            raise Refusal(REFUSED, NotAnswered(error=reason))
        async with self._service.database.transaction() as conn:
            record = await store.save_report(conn, lease.subject, report)
        assert lease.until is not None, "a lease that is held was confirmed"
        return NodeOrder(
            replica_id=record.replica_id,
            lease_seconds=max(0.0, (lease.until - self._service.clock()).total_seconds()),
            engine=self._engine,
            folders=record.folders,
            start=record.start,
        )

    async def _signed(self, headers: Mapping[str, str], body: bytes) -> ObjectAnswers:
        asked, lease = await self._answers.asked(LeaseObjects, headers, body)
        async with self._service.database.transaction() as conn:
            record = await store.find_node(conn, lease.subject)
        prefixes = nodes.prefixes_of(record)
        return await self._answers.sign(asked, lambda request: why_not_read(request, prefixes))
