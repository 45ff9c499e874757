"""What a service answers to the nodes of its leases: who asks is proved, and requests to S3 are signed for them.

Any process of the service answers: leases are rows. A request that is signed lives for minutes, is in no table,
message or log.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ValidationError

from schemas.object_requests import (
    SIGNATURE_HEADER,
    NotAnswered,
    ObjectAnswer,
    ObjectAnswers,
    ObjectRequest,
)
from shared.device_leases import holder
from shared.device_leases.lease import HeldLease
from shared.errors import StorageUnavailable
from shared.log import get_logger
from shared.nodes import access
from shared.nodes.requests import LeaseObjects, NodeRequest
from shared.postgres.database import is_unavailable
from shared.service import Service
from shared.settings import ServiceSettings
from shared.signatures import signed_request

if TYPE_CHECKING:
    from shared.storage.presigner import Presigner, StoreTime

log = get_logger(__name__)

OK, UNREADABLE, REFUSED, NOT_NOW = 200, 400, 403, 503
Asked = TypeVar("Asked", bound=NodeRequest)


class Refusal(Exception):
    """The node is not answered."""

    def __init__(self, status: int, answer: NotAnswered) -> None:
        super().__init__(answer.error)
        self.status = status
        self.answer = answer


class NodeAnswers:
    def __init__(self, service: Service, settings: ServiceSettings, *, s3_endpoint: str) -> None:
        """s3_endpoint: address at which nodes reach S3; empty: that of the settings."""
        self._service = service
        self._settings = settings
        self._s3_endpoint = s3_endpoint

    async def asked(
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
        if access.is_awaited(lease):
            raise Refusal(NOT_NOW, NotAnswered(error=f"the node of lease {asked.lease_id} is not known yet"))
        now = self._service.clock()
        signed = signed_request(body, headers.get(SIGNATURE_HEADER, ""))
        if reason := access.why_not_of_the_node(lease, asked, signed, now=now):
            log.warning("node refused", node_id=asked.node_id, reason=reason)
            raise Refusal(REFUSED, NotAnswered(error=reason, time=now))
        return asked, lease

    async def sign(self, asked: LeaseObjects, why_not: Callable[[ObjectRequest], str]) -> ObjectAnswers:
        """Sign what is asked for. `why_not`: returns why the node may not do this; empty where it may."""
        at = await self._store_time.now()
        answers = []
        for request in asked.requests:
            if reason := why_not(request):
                log.warning("request for an object refused", node_id=asked.node_id, reason=reason)
                answers.append(ObjectAnswer(refused=reason))
            else:
                answers.append(ObjectAnswer(request=self._presigner.sign(request, at=at)))
        return ObjectAnswers(answers=tuple(answers))

    @cached_property
    def _presigner(self) -> "Presigner":
        """botocore is loaded at its first use, as boto3 is by `Service.objects`."""
        from shared.storage.presigner import Presigner

        return Presigner.from_settings(self._settings, endpoint=self._s3_endpoint)

    @cached_property
    def _store_time(self) -> "StoreTime":
        from shared.storage.presigner import StoreTime

        return StoreTime.from_settings(self._settings)


async def answered(work: Awaitable[BaseModel]) -> tuple[int, bytes]:
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
