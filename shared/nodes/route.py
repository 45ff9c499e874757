"""What a program on a node asks a service for over HTTP: signed with the node's key, by the service's time."""

from collections.abc import Callable
from datetime import datetime, timedelta

import httpx
from pydantic import BaseModel, ValidationError

from schemas.object_requests import SIGNATURE_HEADER, NotAnswered
from shared.clock import utc_now
from shared.log import get_logger
from shared.signatures import PrivateKey

log = get_logger(__name__)

TIMEOUT = httpx.Timeout(15.0, connect=5.0)
OK = 200
MAX_EXCERPT = 300
MIN_CORRECTION = timedelta(seconds=5)


class RequestFailed(Exception):
    """The service did not answer, or refused."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        """Of HTTP; None where no answer came."""


class SignedRoute:
    """One route of a service, by POST."""

    def __init__(
        self, address: str, route: str, *, service: str, key: PrivateKey, http: httpx.AsyncClient
    ) -> None:
        self._address = address.rstrip("/")
        self._route = route
        self._service = service
        self._key = key
        self._http = http
        self._ahead = timedelta(0)
        """Lead of the service's time over this machine's, of which its refusals tell."""

    async def ask(self, body_at: Callable[[datetime], BaseModel]) -> bytes:
        """Return the content of the answer. `body_at` returns the body that is signed at this time.

        Raises: RequestFailed.
        """
        answer = await self._post(body_at)
        if answer.status_code != OK and self._has_other_time(answer):
            answer = await self._post(body_at)
        if answer.status_code != OK:
            problem = f"{self._service}: {answer.status_code}: {answer.text[:MAX_EXCERPT]}"
            raise RequestFailed(problem, answer.status_code)
        return answer.content

    async def _post(self, body_at: Callable[[datetime], BaseModel]) -> httpx.Response:
        content = body_at(utc_now() + self._ahead).model_dump_json().encode()
        try:
            return await self._http.post(
                self._address + self._route,
                content=content,
                headers={SIGNATURE_HEADER: self._key.signature_of(content)},
            )
        except httpx.TransportError as error:
            raise RequestFailed(f"{self._service} at {self._address}: {error!r}") from error

    def _has_other_time(self, refusal: httpx.Response) -> bool:
        """Return whether the service's time is another than was thought, and take it over."""
        try:
            their_time = NotAnswered.model_validate_json(refusal.content).time
        except ValidationError:
            return False
        if their_time is None:
            return False
        ahead = their_time - utc_now()
        if abs(ahead - self._ahead) < MIN_CORRECTION:
            return False
        log.warning("service has another time", service=self._service, seconds_ahead=ahead.total_seconds())
        self._ahead = ahead
        return True
