"""The platform's HTTP API, for the command line."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from cli.changes import is_dry, plan, plan_last
from ops.connection import Connection
from ops.errors import RefusedByPlatform, Unreachable
from shared.tls import CA_FILE, client_context

UNKNOWN_AUTHORITY = "CERTIFICATE_VERIFY_FAILED"


class Api:
    def __init__(self, connection: Connection, *, as_admin: bool = False) -> None:
        key = connection.admin_key if as_admin else connection.api_key
        self._files = "/admin/files" if as_admin else "/files"
        self._trusts = f"found {CA_FILE}={connection.ca_file or ''}, expected the file of its authority"
        self._client = httpx.Client(
            base_url=connection.base_url,
            headers={"authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(60.0, connect=5.0),
            verify=client_context(connection.ca_file) or True,
        )

    def get(self, path: str, **params: Any) -> Any:
        query = {name: value for name, value in params.items() if value is not None}
        return self._answer(self._send("GET", path, params=query))

    def text(self, path: str, **params: Any) -> str:
        """What a path answers that is no JSON."""
        query = {name: value for name, value in params.items() if value is not None}
        answer = self._send("GET", path, params=query)
        return answer.text if answer.is_success else str(self._answer(answer))

    def stream(self, path: str, headers: Mapping[str, str], take: Callable[[httpx.Response], None]) -> None:
        """Hand over the answer while its bytes come."""
        try:
            with self._client.stream("GET", path, headers=headers) as answer:
                if not answer.is_success:
                    answer.read()
                    self._answer(answer)
                take(answer)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def post(self, path: str, body: Any = None) -> Any:
        self._plan("POST", path, body)
        return self._answer(self._send("POST", path, json=body))

    def post_each(self, paths: Sequence[str]) -> list[Any]:
        """One after the other; a dry run names them all."""
        for path in paths[:-1] if is_dry() else ():
            self._plan("POST", path, change=plan)
        return [self.post(path) for path in (paths[-1:] if is_dry() else paths)]

    def put(self, path: str, body: Any) -> Any:
        self._plan("PUT", path, body)
        return self._answer(self._send("PUT", path, json=body))

    def delete(self, path: str) -> Any:
        self._plan("DELETE", path)
        return self._answer(self._send("DELETE", path))

    def upload(self, path: Path, *, purpose: str, is_used: bool = False) -> Any:
        """A file of the tenant; with the operator's key one of a suite, which no tenant's key opens.

        is_used: whether its id goes into the change that follows, which a dry run shows, too.
        """
        if not path.is_file():
            raise RefusedByPlatform(f"{path}: no such file")
        if is_dry():
            return self._planned_upload(path, purpose, change=plan if is_used else plan_last)
        with path.open("rb") as file:
            return self._answer(
                self._send("POST", self._files, files={"file": (path.name, file)}, data={"purpose": purpose})
            )

    def _planned_upload(self, path: Path, purpose: str, *, change: Callable[..., None]) -> Any:
        """Return what the answer would be as far as it follows from the bytes."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = path.stat().st_size
        body = {"file": path.name, "bytes": size, "sha256": digest, "purpose": purpose}
        self._plan("POST", self._files, body, change=change)
        return {
            "id": f"file-of-{digest[:16]}",
            "bytes": size,
            "filename": path.name,
            "retune": {"sha256": digest},
        }

    def _plan(
        self, method: str, path: str, body: Any = None, *, change: Callable[..., None] = plan_last
    ) -> None:
        url = f"{str(self._client.base_url).rstrip('/')}{path}"
        change(f"{method} {url}", method=method, url=url, body=body)

    def pages(self, path: str, **params: Any) -> Iterator[Any]:
        """Every item of a paged list."""
        after = None
        while True:
            page = self.get(path, after=after, limit=100, **params)
            yield from page["data"]
            if not page.get("has_more"):
                return
            after = page["last_id"]

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            return self._client.request(method, path, **options)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: httpx.TransportError) -> Unreachable:
        url = self._client.base_url
        if UNKNOWN_AUTHORITY in str(error):
            return Unreachable(f"{url} is not trusted ({error}): {self._trusts}")
        return Unreachable(f"{url} does not answer ({error}); is the stack up? `retune status`")

    def _answer(self, answer: httpx.Response) -> Any:
        if answer.is_success:
            return answer.json()
        try:
            message = answer.json()["error"]["message"]
        except (ValueError, KeyError, TypeError):
            message = answer.text[:500]
        request_id = answer.headers.get("x-request-id")
        named = f" (request {request_id})" if request_id else ""
        raise RefusedByPlatform(f"{answer.status_code}: {message}{named}")
