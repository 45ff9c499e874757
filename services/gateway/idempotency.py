"""A request with an Idempotency-Key is carried out once; sent again, it has the answer of the first."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fastapi.responses import JSONResponse

from services.gateway import store
from services.gateway.errors import ApiError
from services.gateway.model import JsonObject
from shared.postgres.database import Connection


@dataclass(frozen=True)
class Answer:
    body: JsonObject
    is_first: bool = True

    def response(self) -> JSONResponse:
        return JSONResponse(self.body, headers={} if self.is_first else {"idempotent-replayed": "true"})


async def answer_once(
    conn: Connection, tenant: str, key: str | None, digest: str, work: Callable[[], Awaitable[JsonObject]]
) -> Answer:
    """Carry out the work unless the tenant used the key before; without a key always.

    `digest`: of what is asked for. Raises ApiError where the first request with the key was another one.
    """
    if not key:
        return Answer(await work())
    if not await store.claim_key(conn, tenant, key, digest):
        first = await store.get_request(conn, tenant, key)
        if first.body_sha256 != digest:
            message = f"Idempotency-Key {key!r} was used before with another body"
            raise ApiError(422, message, param="Idempotency-Key", code="idempotency_key_reused")
        assert first.response is not None, "it was saved in the transaction that claimed the key"
        return Answer(first.response, is_first=False)
    answer = Answer(await work())
    await store.save_response(conn, tenant, key, answer.body)
    return answer
