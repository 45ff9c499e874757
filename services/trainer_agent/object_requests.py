"""The door at which nodes ask for signed requests to S3: they have no key of it.

What is signed lives for minutes, is in no table, message or log, and is asked for again.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from schemas.object_requests import (
    SIGNATURE_HEADER,
    ObjectAnswer,
    ObjectAnswers,
    ObjectRequests,
)
from services.trainer_agent import rights
from services.trainer_agent.gauges import OBJECTS_REFUSED
from services.trainer_agent.model import Attempt
from services.trainer_agent.node_requests import KnownAttempts, NodeRequests
from services.trainer_agent.settings import Settings
from shared.errors import StorageUnavailable
from shared.log import get_logger
from shared.nodes.answers import answered
from shared.service import Service
from shared.signatures import signed_request

if TYPE_CHECKING:
    from shared.storage.presigner import Presigner, StoreTime

log = get_logger(__name__)


class ObjectRequestDoor:
    def __init__(self, service: Service, settings: Settings, attempts: KnownAttempts) -> None:
        self._service = service
        self._settings = settings
        self._requests = NodeRequests(attempts, OBJECTS_REFUSED)

    async def answer(self, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        """Return status and content of the answer to a request over HTTP."""
        return await answered(self._answer(headers.get(SIGNATURE_HEADER, ""), body))

    async def _answer(self, signature: str, body: bytes) -> ObjectAnswers:
        asked = self._requests.read(ObjectRequests, body)
        known = await self._requests.attempt_of(asked)
        now, signed = self._service.clock(), signed_request(body, signature)
        if why := rights.why_not_of_the_node(known.attempt, asked, signed, now=now, newest=known.newest):
            raise self._requests.refusal(asked, why, now=now)
        return await self._signed(asked, known.attempt)

    async def _signed(self, asked: ObjectRequests, attempt: Attempt) -> ObjectAnswers:
        try:
            at = await self._store_time.now()
        except StorageUnavailable as error:
            raise self._requests.not_now(str(error)) from error
        answers = []
        for request in asked.requests:
            if reason := rights.why_not_allowed(request, attempt, asked.node_index):
                OBJECTS_REFUSED.labels(rights.Refusal.FORBIDDEN).inc()
                log.warning("request for an object refused", node_id=asked.node_id, reason=reason)
                answers.append(ObjectAnswer(refused=reason))
            else:
                answers.append(ObjectAnswer(request=self._presigner.sign(request, at=at)))
        return ObjectAnswers(answers=tuple(answers))

    @cached_property
    def _presigner(self) -> "Presigner":
        """botocore is loaded at its first use, as boto3 is by `Service.objects`."""
        from shared.storage.presigner import Presigner

        return Presigner.from_settings(self._settings, endpoint=self._settings.nodes_s3_endpoint)

    @cached_property
    def _store_time(self) -> "StoreTime":
        from shared.storage.presigner import StoreTime

        return StoreTime.from_settings(self._settings)
