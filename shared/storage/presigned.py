"""Objects in S3 for who has no key of it: each request is signed by somebody else, and sent as it is.

Calls run off the event loop, as those of `shared/storage/s3.py`, whose guarantees hold here too.
"""

import asyncio
import base64
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar
from uuid import uuid4
from xml.etree import ElementTree as ET

import httpx

from schemas.object_requests import ObjectRequest, Operation, PresignedRequest
from shared.errors import Conflict, CorruptObject, StorageUnavailable
from shared.failpoints import failpoint
from shared.http_client import http_client_of_threads
from shared.log import get_logger
from shared.storage.objects import (
    CHUNK_BYTES,
    MAX_BYTES_IN_MEMORY,
    MULTIPART_BYTES,
    ObjectHead,
    require_content,
)

log = get_logger(__name__)

TRIES = 4
FIRST_PAUSE_SECONDS = 0.25
CONNECT_SECONDS, ANSWER_SECONDS = 5.0, 30.0
OK = 300
MISSING, FORBIDDEN, TOO_MANY, SERVER_ERROR = 404, 403, 429, 500
EXISTS = frozenset({409, 412})
MAX_EXCERPT = 300
SHA256_OF_OBJECT = "x-amz-meta-sha256"

Result = TypeVar("Result")


class Signer(Protocol):
    async def sign(self, asked: ObjectRequest, *, fresh: bool = False) -> PresignedRequest:
        """Return the request, signed. `fresh`: not one that was signed before, because S3 refuses it.

        Raises: StorageUnavailable, also where the request is refused.
        """


class PresignedObjectStore:
    """A WriteOnceStore. The threads in which its calls run share one client."""

    def __init__(self, signer: Signer, *, ca_file: Path | None = None) -> None:
        """ca_file: authorities that the server is verified with; None: those of httpx."""
        self._signer = signer
        self._http = http_client_of_threads(
            ca_file,
            timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            headers={"accept-encoding": "identity"},
        )
        self._aborting: set[asyncio.Task[None]] = set()

    async def put_file(self, key: str, path: Path, *, sha256: str) -> None:
        if path.stat().st_size > MULTIPART_BYTES:
            await self._put_large(key, path, sha256)
        else:
            data = await asyncio.to_thread(path.read_bytes)
            if hashlib.sha256(data).hexdigest() != sha256:
                raise CorruptObject(f"{path.name} changed on disk before it was stored as {key}")
            await self._put(key, data, sha256)
        failpoint("s3.part.sent")

    async def put_bytes(self, key: str, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        await self._put(key, data, digest)
        return digest

    async def get_file(self, key: str, path: Path, *, sha256: str, size_bytes: int) -> None:
        partial = path.with_name(f".{path.name}.{uuid4().hex}")

        def fetch(request: PresignedRequest) -> None:
            with partial.open("wb") as file, self._streamed(request, key) as answer:
                _write_verified(answer, key, file.write, sha256=sha256, size_bytes=size_bytes)

        try:
            await self._call(ObjectRequest(operation=Operation.GET, key=key), fetch)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    async def get_bytes(
        self, key: str, *, sha256: str | None = None, limit_bytes: int = MAX_BYTES_IN_MEMORY
    ) -> bytes:
        def fetch(request: PresignedRequest) -> bytes:
            with self._streamed(request, key) as answer:
                size = int(answer.headers["content-length"])
                if size > limit_bytes:
                    raise CorruptObject(f"{key} has {size} bytes, expected at most {limit_bytes}")
                data = b"".join(answer.iter_raw())
            if sha256 is not None:
                digest = hashlib.sha256(data).hexdigest()
                require_content(key, digest, len(data), sha256=sha256, size_bytes=size)
            return data

        return await self._call(ObjectRequest(operation=Operation.GET, key=key), fetch)

    async def verify(self, key: str, *, sha256: str, size_bytes: int) -> None:
        def read(request: PresignedRequest) -> None:
            with self._streamed(request, key) as answer:
                _write_verified(answer, key, len, sha256=sha256, size_bytes=size_bytes)

        await self._call(ObjectRequest(operation=Operation.GET, key=key), read)

    async def head(self, key: str) -> ObjectHead | None:
        try:
            answer = await self._send(ObjectRequest(operation=Operation.HEAD, key=key))
        except KeyError:
            return None
        return ObjectHead(key, int(answer.headers["content-length"]), answer.headers.get(SHA256_OF_OBJECT))

    async def list_objects(self, prefix: str) -> list[ObjectHead]:
        heads: list[ObjectHead] = []
        asked = ObjectRequest(operation=Operation.LIST, key=prefix)
        while True:
            page = _xml(await self._send(asked))
            heads += [
                ObjectHead(_text(each, "Key"), int(_text(each, "Size")), None)
                for each in page.iterfind("{*}Contents")
            ]
            if _text(page, "IsTruncated") != "true":
                return heads
            asked = asked.model_copy(update={"continuation": _text(page, "NextContinuationToken")})

    async def _put(self, key: str, data: bytes, sha256: str) -> None:
        asked = ObjectRequest(operation=Operation.PUT, key=key, sha256=sha256, size_bytes=len(data))
        try:
            await self._send(asked, data)
        except _WriteRefused as error:
            await self._accept_same(error, key, sha256)

    async def _put_large(self, key: str, path: Path, sha256: str) -> None:
        start = ObjectRequest(operation=Operation.START_UPLOAD, key=key, sha256=sha256)
        upload = _text(_xml(await self._send(start)), "UploadId")
        try:
            parts = await self._send_parts(key, path, upload, sha256)
            complete = ObjectRequest(operation=Operation.COMPLETE_UPLOAD, key=key, upload_id=upload)
            await self._send(complete, parts)
        except _WriteRefused as error:
            self._abort(key, upload)
            await self._accept_same(error, key, sha256)
        except BaseException:
            self._abort(key, upload)
            raise

    async def _send_parts(self, key: str, path: Path, upload: str, sha256: str) -> bytes:
        """Return the body that completes the upload."""
        complete = ET.Element("CompleteMultipartUpload")
        whole = hashlib.sha256()
        with path.open("rb") as file:
            while data := await asyncio.to_thread(file.read, MULTIPART_BYTES):
                digest = await asyncio.to_thread(_digest_of_part, whole, data)
                number = len(complete) + 1
                asked = ObjectRequest(
                    operation=Operation.PUT_PART,
                    key=key,
                    upload_id=upload,
                    part=number,
                    sha256=digest.hex(),
                    size_bytes=len(data),
                )
                answer = await self._send(asked, data)
                part = ET.SubElement(complete, "Part")
                ET.SubElement(part, "PartNumber").text = str(number)
                ET.SubElement(part, "ETag").text = answer.headers["etag"]
                ET.SubElement(part, "ChecksumSHA256").text = base64.b64encode(digest).decode()
        if whole.hexdigest() != sha256:
            raise CorruptObject(f"{path.name} changed on disk while it was stored as {key}")
        return ET.tostring(complete)

    def _abort(self, key: str, upload: str) -> None:
        """Let S3 forget the parts that it has, behind the back of who may be in a hurry."""

        async def abort() -> None:
            try:
                await self._send(ObjectRequest(operation=Operation.ABORT_UPLOAD, key=key, upload_id=upload))
            except (StorageUnavailable, KeyError) as error:
                log.warning("parts of an upload stay in S3", key=key, error=repr(error))

        task = asyncio.create_task(abort())
        self._aborting.add(task)
        task.add_done_callback(self._aborting.discard)

    async def _accept_same(self, error: "_WriteRefused", key: str, sha256: str) -> None:
        """Accept an existing key with the same bytes; raise StorageUnavailable or Conflict otherwise."""
        head = await self.head(key)
        if head is None:
            raise StorageUnavailable(f"{key}: another write is under way") from error
        if head.sha256 != sha256:
            raise Conflict(f"{key} exists with sha256 {head.sha256}, tried to write {sha256}") from error

    async def _send(self, asked: ObjectRequest, data: bytes = b"") -> httpx.Response:
        def send(request: PresignedRequest) -> httpx.Response:
            answer = self._http.request(request.method, request.url, headers=request.headers, content=data)
            _require_ok(answer, asked.key)
            return answer

        return await self._call(asked, send)

    async def _call(self, asked: ObjectRequest, send: Callable[[PresignedRequest], Result]) -> Result:
        """Send the request in a thread, again where S3 is in trouble, and once more where it has become too old."""
        fresh = False
        for tries_left in reversed(range(TRIES)):
            request = await self._signer.sign(asked, fresh=fresh)
            try:
                return await asyncio.to_thread(send, request)
            except _Forbidden as error:
                if fresh:
                    raise StorageUnavailable(f"{asked.operation} {asked.key}: {error}") from error
                fresh = True
            except (httpx.TransportError, _ServerFailed) as error:
                if not tries_left:
                    raise StorageUnavailable(f"{asked.operation} {asked.key}: {error!r}") from error
                await asyncio.sleep(FIRST_PAUSE_SECONDS * 2 ** (TRIES - 1 - tries_left))
        raise StorageUnavailable(f"{asked.operation} {asked.key}: no answer in {TRIES} tries")

    @contextmanager
    def _streamed(self, request: PresignedRequest, key: str) -> Iterator[httpx.Response]:
        with self._http.stream(request.method, request.url, headers=request.headers) as answer:
            if answer.status_code >= OK:
                answer.read()
            _require_ok(answer, key)
            yield answer


class _WriteRefused(Exception):
    """The key has an object, or is being written."""


class _Forbidden(Exception):
    """S3 refuses the request as it is signed."""


class _ServerFailed(Exception):
    """S3 answered with an error of its own."""


def _require_ok(answer: httpx.Response, key: str) -> None:
    """Raise KeyError, _WriteRefused, _Forbidden, _ServerFailed or StorageUnavailable. No error names the address."""
    status = answer.status_code
    if status < OK:
        return
    if status == MISSING:
        raise KeyError(key)
    problem = f"{status}: {answer.text[:MAX_EXCERPT]}"
    if status in EXISTS:
        raise _WriteRefused(problem)
    if status == FORBIDDEN:
        raise _Forbidden(problem)
    if status == TOO_MANY or status >= SERVER_ERROR:
        raise _ServerFailed(problem)
    raise StorageUnavailable(f"{key}: {problem}")


def _write_verified(
    answer: httpx.Response, key: str, write: Callable[[bytes], object], *, sha256: str, size_bytes: int
) -> None:
    digest, size = hashlib.sha256(), 0
    for chunk in answer.iter_raw(CHUNK_BYTES):
        digest.update(chunk)
        size += len(chunk)
        write(chunk)
    require_content(key, digest.hexdigest(), size, sha256=sha256, size_bytes=size_bytes)


def _digest_of_part(whole: "hashlib._Hash", data: bytes) -> bytes:
    """Return the part's digest, and add the part to that of the whole."""
    whole.update(data)
    return hashlib.sha256(data).digest()


def _xml(answer: httpx.Response) -> ET.Element:
    try:
        return ET.fromstring(answer.content)  # noqa: S314 - the store that trainer_agent named
    except ET.ParseError as error:
        raise StorageUnavailable(f"S3 answers no XML: {answer.text[:MAX_EXCERPT]!r}") from error


def _text(element: ET.Element, name: str) -> str:
    return element.findtext(f"{{*}}{name}", "")
