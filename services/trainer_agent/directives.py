"""The door at which a node asks what its attempt shall do: it reads nothing in Kafka.

A request is held while there is nothing new. Any process answers: what is answered follows from the attempt's row.
"""

import asyncio
import hashlib
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from schemas.directives import HELD_FOR, Directives, DirectivesRequest
from schemas.object_requests import SIGNATURE_HEADER
from services.trainer_agent import decide, rights, store
from services.trainer_agent.gauges import DIRECTIVES_REFUSED
from services.trainer_agent.model import Attempt
from services.trainer_agent.node_requests import Known, KnownAttempts, NodeRequests
from shared.messaging.wake import WITHOUT_A_WAKE_SECONDS, wait_for_wake
from shared.nodes.answers import answered
from shared.postgres.database import is_unavailable
from shared.service import Service
from shared.signatures import signed_request

LOOK_EVERY_SECONDS = 0.1
"""What another process changes is seen so much later."""
REST_SECONDS = 0.02
"""Time between two looks, however much this process commits."""


class DirectiveDoor:
    def __init__(self, service: Service, attempts: KnownAttempts, changes: "Changes") -> None:
        self._service = service
        self._requests = NodeRequests(attempts, DIRECTIVES_REFUSED)
        self._changes = changes

    async def answer(self, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        """Return status and content of the answer to a request over HTTP."""
        return await answered(self._answer(headers.get(SIGNATURE_HEADER, ""), body))

    async def _answer(self, signature: str, body: bytes) -> Directives:
        asked = self._requests.read(DirectivesRequest, body)
        known = await self._requests.attempt_of(asked)
        now, signed = self._service.clock(), signed_request(body, signature)
        if why := rights.why_not_proved(known.attempt, asked, signed, now=now):
            raise self._requests.refusal(asked, why, now=now)
        until = time.monotonic() + HELD_FOR.total_seconds()
        while True:
            directives = self._directives(asked, known)
            left = until - time.monotonic()
            if directives.version != asked.version or left <= 0 or self._service.is_ending:
                return directives
            await self._changes.wait(known.attempt, seconds=left)
            known = await self._requests.attempt_of(asked)

    def _directives(self, asked: DirectivesRequest, known: Known) -> Directives:
        attempt, now = known.attempt, self._service.clock()
        directives = decide.directives_for(
            attempt, asked.node_index, report_id=asked.report_id, now=now, newest=known.newest
        )
        return Directives(
            version=_version_of(directives, attempt),
            start=directives.start,
            stop=directives.stop,
            time=now,
            origin=attempt.origin,
        )


def _version_of(directives: decide.Directives, attempt: Attempt) -> str:
    """Return the same text for a stop whose deadline nobody has set, whenever that is asked for."""
    start, stop = directives.start, directives.stop
    content = (
        start and start.model_dump_json(),
        stop and stop.reason,
        attempt.stop and attempt.stop.deadline,
    )
    return hashlib.sha256(repr(content).encode()).hexdigest()


@dataclass(eq=False)
class _Waiting:
    key: tuple[str, int]
    revision: int
    has_changed: asyncio.Event = field(default_factory=asyncio.Event)


class Changes:
    """Changes of attempts that requests wait for, of any process: one query for all of them."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._waiting: set[_Waiting] = set()
        self._wake = asyncio.Event()
        service.on_wake(self._wake)

    async def wait(self, attempt: Attempt, *, seconds: float) -> None:
        """Return once the attempt is another one than this, the process is to end, or after so many seconds."""
        waiting = _Waiting((attempt.job_id, attempt.number), attempt.revision)
        self._waiting.add(waiting)
        # A commit since the attempt was read has no other look to come.
        self._wake.set()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await waiting.has_changed.wait()
        finally:
            self._waiting.discard(waiting)

    async def watch(self) -> None:
        """Wake who waits, until cancelled."""
        while True:
            seconds = LOOK_EVERY_SECONDS if self._waiting else WITHOUT_A_WAKE_SECONDS
            await wait_for_wake(self._wake, at_most_seconds=seconds)
            if self._waiting:
                await self._look()
            await asyncio.sleep(REST_SECONDS)

    async def _revisions(self) -> Mapping[tuple[str, int], int]:
        """Return those of all attempts that are waited for; none while Postgres is away."""
        try:
            async with self._service.database.transaction() as conn:
                return await store.find_revisions(conn, {waiting.key for waiting in self._waiting})
        except Exception as error:
            if not is_unavailable(error):
                raise
            return {}

    async def _look(self) -> None:
        revisions = {} if self._service.is_ending else await self._revisions()
        for waiting in self._waiting:
            if self._service.is_ending or revisions.get(waiting.key, waiting.revision) != waiting.revision:
                waiting.has_changed.set()
