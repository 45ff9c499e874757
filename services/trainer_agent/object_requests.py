"""The door at which nodes ask for signed requests to S3: they have no key of it.

What is signed lives for minutes, is in no table, message or log, and is asked for again.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from pydantic import BaseModel, ValidationError

from schemas.object_requests import (
    SIGNATURE_HEADER,
    NotAnswered,
    ObjectAnswer,
    ObjectAnswers,
    ObjectRequests,
)
from services.trainer_agent import rights, store
from services.trainer_agent.gauges import REFUSED
from services.trainer_agent.model import Attempt
from services.trainer_agent.settings import Settings
from shared.errors import StorageUnavailable
from shared.log import get_logger
from shared.postgres.database import Connection, is_unavailable
from shared.service import Service
from shared.signatures import signed_request

if TYPE_CHECKING:
    from shared.storage.presigner import Presigner, StoreTime

log = get_logger(__name__)

OK, UNREADABLE, FORBIDDEN, NOT_NOW = 200, 400, 403, 503
REASONS = {UNREADABLE: rights.Refusal.UNREADABLE, NOT_NOW: rights.Refusal.NOT_NOW}
"""Of answers that say nothing about who asked."""
KNOWN_FOR = timedelta(minutes=10)
"""Time for which what Postgres had of an attempt counts while it is away. Nobody can end an attempt there meanwhile;
but a process may be the only one that does not reach it."""
MAX_KNOWN = 1_000


@dataclass(frozen=True)
class Known:
    """An attempt as it was in Postgres."""

    attempt: Attempt | None
    newest: int
    at: datetime


class ObjectRequestDoor:
    def __init__(self, service: Service, settings: Settings) -> None:
        self._service = service
        self._settings = settings
        self._known: OrderedDict[tuple[str, int], Known] = OrderedDict()

    async def answer(self, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        """Return status and content of the answer to a request over HTTP."""
        status, content = await self._answer(headers.get(SIGNATURE_HEADER, ""), body)
        if status in REASONS:
            REFUSED.labels(REASONS[status]).inc()
        return status, content.model_dump_json().encode()

    async def _answer(self, signature: str, body: bytes) -> tuple[int, BaseModel]:
        try:
            asked = ObjectRequests.model_validate_json(body)
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"]))
            return UNREADABLE, NotAnswered(error=f"{where or 'body'}: {error.errors()[0]['msg']}")
        known = await self._read(asked.job_id, asked.attempt)
        if known is None:
            return NOT_NOW, NotAnswered(error="Postgres is away")
        attempt, newest = known.attempt, known.newest
        if attempt is None or attempt.nodes is None:
            unknown = f"attempt {asked.attempt} of {asked.job_id} has no nodes that are known yet"
            return NOT_NOW, NotAnswered(error=unknown)
        now, signed = self._service.clock(), signed_request(body, signature)
        if refused := rights.why_not_of_the_node(attempt, asked, signed, now=now, newest=newest):
            word, reason = refused
            REFUSED.labels(word).inc()
            log.warning("node refused", node_id=asked.node_id, reason=reason)
            return FORBIDDEN, NotAnswered(error=reason, time=now)
        return await self._signed(asked, attempt)

    async def _read(self, job_id: str, number: int) -> Known | None:
        """Return what is known of the attempt; None where that is nothing, or too old."""
        key = job_id, number
        try:
            async with self._service.database.transaction() as conn:
                known = await self._current(conn, key)
        except Exception as error:
            if not is_unavailable(error):
                raise
            before = self._known.get(key)
            return before if before and self._service.clock() < before.at + KNOWN_FOR else None
        if known.attempt is not None:
            self._known[key] = known
            self._known.move_to_end(key)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return known

    async def _current(self, conn: Connection, key: tuple[str, int]) -> Known:
        """Return the attempt as it is now, and read it only where it changed: an order has all of a recipe."""
        revision, newest = await store.find_revision(conn, *key)
        before = self._known.get(key)
        if before and before.attempt and before.attempt.revision == revision:
            return Known(before.attempt, newest, self._service.clock())
        attempt = await store.read_attempt(conn, *key) if revision is not None else None
        return Known(attempt, newest, self._service.clock())

    async def _signed(self, asked: ObjectRequests, attempt: Attempt) -> tuple[int, BaseModel]:
        try:
            at = await self._store_time.now()
        except StorageUnavailable as error:
            return NOT_NOW, NotAnswered(error=str(error))
        answers = []
        for request in asked.requests:
            if reason := rights.why_not_allowed(request, attempt, asked.node_index):
                REFUSED.labels(rights.Refusal.FORBIDDEN).inc()
                log.warning("request for an object refused", node_id=asked.node_id, reason=reason)
                answers.append(ObjectAnswer(refused=reason))
            else:
                answers.append(ObjectAnswer(request=self._presigner.sign(request, at=at)))
        return OK, ObjectAnswers(answers=tuple(answers))

    @cached_property
    def _presigner(self) -> "Presigner":
        """botocore is loaded at its first use, as boto3 is by `Service.objects`."""
        from shared.storage.presigner import Presigner

        return Presigner.from_settings(self._settings, endpoint=self._settings.nodes_s3_endpoint)

    @cached_property
    def _store_time(self) -> "StoreTime":
        from shared.storage.presigner import StoreTime

        return StoreTime.from_settings(self._settings)
