"""What a replica answers, and to whom: a middleware that vLLM runs in front of all its routes.

vLLM asks for its key on some routes alone, and libraries that it uses add others (`/adapters`, `/invocations`), so
every request is refused here that is not one of ours with its key. The process knows the keys' digests alone.
"""

import hashlib
import os
from hmac import compare_digest

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

INFERENCE = frozenset({("POST", "/v1/chat/completions"), ("POST", "/v1/completions")})
MANAGEMENT = INFERENCE | {
    ("GET", "/health"),
    ("GET", "/metrics"),
    ("GET", "/v1/models"),
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/v1/unload_lora_adapter"),
}
INFERENCE_DIGEST = "RETUNE_INFERENCE_KEY_SHA256"
MANAGEMENT_DIGEST = "RETUNE_MANAGEMENT_KEY_SHA256"
"""Environment variables of the replica's process. It does not start where one is missing."""
POLICY_VIOLATION = 1008
"""Why a WebSocket is closed (RFC 6455)."""


def digest_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


class Guard:
    """401 without one of the two keys, whatever is asked; 404 for what the key does not open."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._opened = {
            os.environ[INFERENCE_DIGEST]: INFERENCE,
            os.environ[MANAGEMENT_DIGEST]: MANAGEMENT,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        opened = self._opened_by(Headers(scope=scope))
        if opened is None:
            return await _refusal(401, "the key of this replica is missing or wrong")(scope, receive, send)
        if (scope["method"], scope["path"]) not in opened:
            what = f"{scope['method']} {scope['path']}"
            return await _refusal(404, f"{what} is not answered to this key")(scope, receive, send)
        return await self._app(scope, receive, send)

    def _opened_by(self, headers: Headers) -> frozenset[tuple[str, str]] | None:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        digest = digest_of(key)
        for known, opened in self._opened.items():
            if scheme.lower() == "bearer" and compare_digest(digest, known):
                return opened
        return None


def _refusal(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": "replica_guard"}}, status_code=status)
