"""Requests to S3 for a node's own objects: it has no key of S3, and asks a service to sign each."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from pydantic import BaseModel, ValidationError

from schemas.object_requests import (
    MAX_REQUESTS,
    ObjectAnswer,
    ObjectAnswers,
    ObjectRequest,
    PresignedRequest,
)
from shared.errors import StorageUnavailable
from shared.nodes.route import RequestFailed, SignedRoute

SHARE_OF_LIFE = 0.6
"""Share of its life for which a signed request is sent; a large object may come after another one for a while."""


@dataclass
class _Waiting:
    asked: ObjectRequest
    answer: asyncio.Future[ObjectAnswer]


class RequestSigner:
    """A Signer. What is asked while a request is under way goes together in the next one."""

    def __init__(
        self,
        route: SignedRoute,
        body: Callable[[tuple[ObjectRequest, ...], datetime], BaseModel],
        *,
        service: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """body: returns what is sent for these requests at this time."""
        self._route = route
        self._body = body
        self._service = service
        self._monotonic = monotonic
        self._signed: dict[ObjectRequest, tuple[PresignedRequest, float]] = {}
        """By what was asked, the request and the monotonic time until which it is sent."""
        self._waiting: list[_Waiting] = []
        self._asking: asyncio.Task[None] | None = None

    async def sign(self, asked: ObjectRequest, *, fresh: bool = False) -> PresignedRequest:
        """Return the request, signed: one from before, while S3 lets it pass for long enough, unless `fresh`.

        Raises: StorageUnavailable, also where the service refuses it.
        """
        now = self._monotonic()
        self._signed = {key: signed for key, signed in self._signed.items() if signed[1] > now}
        if not fresh and asked in self._signed:
            return self._signed[asked][0]
        answer = await self._answer(asked)
        if answer.request is None:
            raise StorageUnavailable(f"{self._service} refuses: {answer.refused}")
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
                answers = await self._ask(tuple(each.asked for each in batch))
            except StorageUnavailable as error:
                for each in batch:
                    if not each.answer.done():
                        each.answer.set_exception(StorageUnavailable(str(error)))
                continue
            for each, answer in zip(batch, answers, strict=True):
                if not each.answer.done():  # who asked may have been cancelled
                    each.answer.set_result(answer)

    async def _ask(self, asked: tuple[ObjectRequest, ...]) -> Sequence[ObjectAnswer]:
        try:
            content = await self._route.ask(lambda at: self._body(asked, at))
            answers = ObjectAnswers.model_validate_json(content).answers
        except RequestFailed as error:
            raise StorageUnavailable(str(error)) from error
        except ValidationError as error:
            raise StorageUnavailable(f"{self._service} answers what is no answer: {error}") from error
        if len(answers) != len(asked):
            raise StorageUnavailable(f"{self._service}: {len(answers)} answers, expected {len(asked)}")
        return answers
