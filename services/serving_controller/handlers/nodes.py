"""The routes at which nodes of replicas report and are given their orders, and signed requests to S3.

Any process of the service answers: reports and orders are rows. A request that is signed lives for minutes, is in no
table, message or log.
"""

from collections.abc import Awaitable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ValidationError

from schemas.object_requests import SIGNATURE_HEADER, NotAnswered, ObjectAnswer, ObjectAnswers
from services.serving_controller import store
from services.serving_controller.decide import nodes
from services.serving_controller.model import NodeRecord
from services.serving_controller.protocol import EngineOptions, NodeOrder, NodeReport, ReplicaObjects
from services.serving_controller.settings import Settings
from shared.device_leases import holder
from shared.device_leases.lease import HeldLease
from shared.errors import StorageUnavailable
from shared.log import get_logger
from shared.postgres.database import is_unavailable
from shared.service import Service
from shared.signatures import signed_request

if TYPE_CHECKING:
    from shared.storage.presigner import Presigner, StoreTime

log = get_logger(__name__)

OK, UNREADABLE, REFUSED, NOT_NOW = 200, 400, 403, 503
Asked = TypeVar("Asked", NodeReport, ReplicaObjects)


class Refusal(Exception):
    """The node is not answered."""

    def __init__(self, status: int, answer: NotAnswered) -> None:
        super().__init__(answer.error)
        self.status = status
        self.answer = answer


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
        self._settings = settings
        self._engine = engine

    async def report(self, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        """Keep what a node reports; answer with what shall be there."""
        return await _answered(self._order(headers, body))

    async def objects(self, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        """Answer with requests that S3 lets pass, to read what shall be on the node."""
        return await _answered(self._signed(headers, body))

    async def _order(self, headers: Mapping[str, str], body: bytes) -> NodeOrder:
        report, lease = await self._asked(NodeReport, headers, body)
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
        asked, lease = await self._asked(ReplicaObjects, headers, body)
        async with self._service.database.transaction() as conn:
            record = await store.find_node(conn, lease.subject)
        at = await self._store_time.now()
        answers = []
        for request in asked.requests:
            if reason := nodes.why_not_allowed(request, record):
                log.warning("request for an object refused", node_id=asked.node_id, reason=reason)
                answers.append(ObjectAnswer(refused=reason))
            else:
                answers.append(ObjectAnswer(request=self._presigner.sign(request, at=at)))
        return ObjectAnswers(answers=tuple(answers))

    async def _asked(
        self, kind: type[Asked], headers: Mapping[str, str], body: bytes
    ) -> tuple[Asked, HeldLease]:
        """Return what the node of a lease asks for. Raises Refusal where it is none, or proves nothing."""
        try:
            asked = kind.model_validate_json(body)
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"]))
            problem = f"{where or 'body'}: {error.errors()[0]['msg']}"
            raise Refusal(UNREADABLE, NotAnswered(error=problem)) from error
        async with self._service.database.transaction() as conn:
            lease = await holder.find_by_id(conn, asked.lease_id)
        if lease is None:
            raise Refusal(REFUSED, NotAnswered(error=f"lease {asked.lease_id} is not held here"))
        if nodes.is_awaited(lease):
            raise Refusal(NOT_NOW, NotAnswered(error=f"the node of lease {asked.lease_id} is not known yet"))
        now = self._service.clock()
        signed = signed_request(body, headers.get(SIGNATURE_HEADER, ""))
        if reason := nodes.why_not_of_the_node(lease, asked, signed, now=now):
            log.warning("node refused", node_id=asked.node_id, reason=reason)
            raise Refusal(REFUSED, NotAnswered(error=reason, time=now))
        return asked, lease

    @cached_property
    def _presigner(self) -> "Presigner":
        """botocore is loaded at its first use, as boto3 is by `Service.objects`."""
        from shared.storage.presigner import Presigner

        return Presigner.from_settings(self._settings, endpoint=self._settings.nodes_s3_endpoint)

    @cached_property
    def _store_time(self) -> "StoreTime":
        from shared.storage.presigner import StoreTime

        return StoreTime.from_settings(self._settings)


async def _answered(work: Awaitable[BaseModel]) -> tuple[int, bytes]:
    """Return status and content of what a node is answered with."""
    try:
        return OK, _json(await work)
    except Refusal as refusal:
        return refusal.status, _json(refusal.answer)
    except StorageUnavailable as error:
        return NOT_NOW, _json(NotAnswered(error=str(error)))
    except Exception as error:
        if not is_unavailable(error):
            raise
        return NOT_NOW, _json(NotAnswered(error="Postgres is away"))


def _json(answer: BaseModel) -> bytes:
    return answer.model_dump_json().encode()
