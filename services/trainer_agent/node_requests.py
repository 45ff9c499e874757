"""What both doors do with a request of a node: read it, and know the attempt by which it is judged."""

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from prometheus_client import Counter
from pydantic import ValidationError

from schemas.object_requests import AttemptNodeRequest, NotAnswered
from services.trainer_agent import rights, store
from services.trainer_agent.model import Attempt
from shared.log import get_logger
from shared.nodes.answers import NOT_NOW, REFUSED, UNREADABLE, Refusal
from shared.postgres.database import Connection, is_unavailable
from shared.service import Service

log = get_logger(__name__)

KNOWN_FOR = timedelta(minutes=10)
"""Time for which what Postgres had of an attempt counts while it is away. Nobody can end an attempt there meanwhile;
but a process may be the only one that does not reach it."""
MAX_KNOWN = 1_000

Asked = TypeVar("Asked", bound=AttemptNodeRequest)


@dataclass(frozen=True)
class Known:
    """An attempt as it was in Postgres."""

    attempt: Attempt
    newest: int
    """Number of the job's newest attempt."""
    at: datetime


class KnownAttempts:
    """Attempts by which requests are judged, each read again only after a change: an order has all of a recipe."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._known: OrderedDict[tuple[str, int], Known] = OrderedDict()

    async def read(self, asked: AttemptNodeRequest) -> Known | None:
        """Return the attempt; None where it is not known yet. Raises what Postgres does that is away for too long."""
        key = asked.job_id, asked.attempt
        try:
            async with self._service.database.transaction() as conn:
                known = await self._current(conn, key)
        except Exception as error:
            before = self._known.get(key)
            if not is_unavailable(error) or before is None or self._service.clock() >= before.at + KNOWN_FOR:
                raise
            return before
        if known is not None:
            self._known[key] = known
            self._known.move_to_end(key)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return known

    async def _current(self, conn: Connection, key: tuple[str, int]) -> Known | None:
        revision, newest = await store.find_revision(conn, *key)
        before = self._known.get(key)
        if before and before.attempt.revision == revision:
            return Known(before.attempt, newest, self._service.clock())
        attempt = await store.read_attempt(conn, *key) if revision is not None else None
        return None if attempt is None else Known(attempt, newest, self._service.clock())


class NodeRequests:
    """Requests at one door, and what it refuses, which is counted."""

    def __init__(self, attempts: KnownAttempts, counter: Counter) -> None:
        self._attempts = attempts
        self._counter = counter

    def read(self, kind: type[Asked], body: bytes) -> Asked:
        """Return the request. Raises Refusal."""
        try:
            return kind.model_validate_json(body)
        except ValidationError as error:
            self._counter.labels(rights.Refusal.UNREADABLE).inc()
            where = ".".join(map(str, error.errors()[0]["loc"]))
            problem = f"{where or 'body'}: {error.errors()[0]['msg']}"
            raise Refusal(UNREADABLE, NotAnswered(error=problem)) from error

    async def attempt_of(self, asked: AttemptNodeRequest) -> Known:
        """Return the attempt of the request, whose nodes are known. Raises Refusal."""
        try:
            known = await self._attempts.read(asked)
        except Exception as error:
            if not is_unavailable(error):
                raise
            raise self.not_now("Postgres is away") from error
        if known is None or known.attempt.nodes is None:
            raise self.not_now(f"attempt {asked.attempt} of {asked.job_id} has no nodes that are known yet")
        return known

    def not_now(self, reason: str) -> Refusal:
        self._counter.labels(rights.Refusal.NOT_NOW).inc()
        return Refusal(NOT_NOW, NotAnswered(error=reason))

    def refusal(
        self, asked: AttemptNodeRequest, why: tuple[rights.Refusal, str], *, now: datetime
    ) -> Refusal:
        """`why`: as `rights` says."""
        word, reason = why
        self._counter.labels(word).inc()
        log.warning("node refused", node_id=asked.node_id, reason=reason)
        return Refusal(REFUSED, NotAnswered(error=reason, time=now))
