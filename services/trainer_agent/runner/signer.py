"""Requests to S3 for this node's own objects: it has no key of S3, and asks trainer_agent to sign each."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import httpx
from pydantic import ValidationError

from schemas.object_requests import (
    MAX_REQUESTS,
    ROUTE,
    SIGNATURE_HEADER,
    NotAnswered,
    ObjectAnswer,
    ObjectAnswers,
    ObjectRequest,
    ObjectRequests,
    PresignedRequest,
)
from services.trainer_agent.runner.settings import Settings
from shared.clock import utc_now
from shared.errors import StorageUnavailable
from shared.http_client import http_client
from shared.log import get_logger
from shared.signatures import PrivateKey

log = get_logger(__name__)

TIMEOUT = httpx.Timeout(15.0, connect=5.0)
OK = 200
MAX_EXCERPT = 300
SHARE_OF_LIFE = 0.6
"""Share of its life for which a signed request is sent; a large object may come after another one for a while."""
MIN_CORRECTION = timedelta(seconds=5)


@dataclass
class _Waiting:
    asked: ObjectRequest
    answer: asyncio.Future[ObjectAnswer]


class NodeSigner:
    """A Signer. What is asked while a request is under way goes together in the next one."""

    def __init__(
        self,
        settings: Settings,
        *,
        http: httpx.AsyncClient | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """http: None is a client that verifies servers as the settings say."""
        self._settings = settings
        self._key = PrivateKey(settings.node_key_file.read_text().strip())
        self._monotonic = monotonic
        self._http = http or http_client(settings.tls, timeout=TIMEOUT)
        self._ahead = timedelta(0)
        """Lead of trainer_agent's time over this machine's, of which its refusals tell."""
        self._signed: dict[ObjectRequest, tuple[PresignedRequest, float]] = {}
        """By what was asked, the request and the monotonic time until which it is sent."""
        self._waiting: list[_Waiting] = []
        self._asking: asyncio.Task[None] | None = None

    async def sign(self, asked: ObjectRequest, *, fresh: bool = False) -> PresignedRequest:
        """Return the request, signed: one from before, while S3 lets it pass for long enough, unless `fresh`.

        Raises: StorageUnavailable, also where trainer_agent refuses it.
        """
        now = self._monotonic()
        self._signed = {key: signed for key, signed in self._signed.items() if signed[1] > now}
        if not fresh and asked in self._signed:
            return self._signed[asked][0]
        answer = await self._answer(asked)
        if answer.request is None:
            raise StorageUnavailable(f"trainer_agent refuses: {answer.refused}")
        until = now + SHARE_OF_LIFE * answer.request.seconds
        self._signed[asked] = answer.request, until
        return answer.request

    async def _answer(self, asked: ObjectRequest) -> ObjectAnswer:
        waiting = _Waiting(asked, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_for_all())
        return await waiting.answer

    async def _ask_for_all(self) -> None:
        while batch := self._waiting[:MAX_REQUESTS]:
            del self._waiting[:MAX_REQUESTS]
            try:
                answers = await self._ask([each.asked for each in batch])
            except StorageUnavailable as error:
                for each in batch:
                    if not each.answer.done():
                        each.answer.set_exception(StorageUnavailable(str(error)))
                continue
            for each, answer in zip(batch, answers, strict=True):
                if not each.answer.done():  # who asked may have been cancelled
                    each.answer.set_result(answer)

    async def _ask(self, asked: Sequence[ObjectRequest]) -> Sequence[ObjectAnswer]:
        answer = await self._post(asked)
        if answer.status_code != OK and self._has_other_time(answer):
            answer = await self._post(asked)
        if answer.status_code != OK:
            raise StorageUnavailable(f"trainer_agent: {answer.status_code}: {answer.text[:MAX_EXCERPT]}")
        try:
            answers = ObjectAnswers.model_validate_json(answer.content).answers
        except ValidationError as error:
            raise StorageUnavailable(f"trainer_agent answers what is no answer: {error}") from error
        if len(answers) != len(asked):
            raise StorageUnavailable(f"trainer_agent: {len(answers)} answers, expected {len(asked)}")
        return answers

    async def _post(self, asked: Sequence[ObjectRequest]) -> httpx.Response:
        settings = self._settings
        body = ObjectRequests(
            job_id=settings.job_id,
            attempt=settings.attempt,
            node_index=settings.node_index,
            node_id=settings.node_id,
            time=utc_now() + self._ahead,
            requests=tuple(asked),
        )
        content = body.model_dump_json(exclude_defaults=True).encode()
        try:
            return await self._http.post(
                f"{settings.trainer_agent_url.rstrip('/')}{ROUTE}",
                content=content,
                headers={SIGNATURE_HEADER: self._key.signature_of(content)},
            )
        except httpx.TransportError as error:
            raise StorageUnavailable(f"trainer_agent at {settings.trainer_agent_url}: {error!r}") from error

    def _has_other_time(self, refusal: httpx.Response) -> bool:
        """Return whether trainer_agent's time is another than was thought, and take it over."""
        try:
            their_time = NotAnswered.model_validate_json(refusal.content).time
        except ValidationError:
            return False
        if their_time is None:
            return False
        ahead = their_time - utc_now()
        if abs(ahead - self._ahead) < MIN_CORRECTION:
            return False
        log.warning("trainer_agent has another time", seconds_ahead=ahead.total_seconds())
        self._ahead = ahead
        return True
