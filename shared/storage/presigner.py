"""Requests to S3 that whoever has them may send for some minutes: signed with this process's key, by S3's clock."""

import asyncio
import base64
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from botocore.auth import SIGV4_TIMESTAMP, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import BotoCoreError
from botocore.httpsession import URLLib3Session

from schemas.object_requests import ObjectRequest, Operation, PresignedRequest
from shared.errors import StorageUnavailable
from shared.settings import ServiceSettings

REGION = "us-east-1"
LIFE_SECONDS = 300
"""Time for which S3 lets a request pass that was signed."""
LOOK_SECONDS = 60.0
"""Time after which S3 is asked for its time again."""
ANSWER_SECONDS = 5
METHODS = {
    Operation.GET: "GET",
    Operation.HEAD: "HEAD",
    Operation.LIST: "GET",
    Operation.PUT: "PUT",
    Operation.START_UPLOAD: "POST",
    Operation.PUT_PART: "PUT",
    Operation.COMPLETE_UPLOAD: "POST",
    Operation.ABORT_UPLOAD: "DELETE",
}
ONCE = {"if-none-match": "*"}


class Presigner:
    """Signs requests for objects of one bucket. What they ask for is not its question."""

    def __init__(self, endpoint: str, access_key: str, secret_key: str, *, bucket: str) -> None:
        """endpoint: the address at which those who are given the requests reach S3."""
        self._endpoint = endpoint.rstrip("/")
        self._credentials = Credentials(access_key, secret_key)
        self._bucket = bucket

    @classmethod
    def from_settings(cls, settings: ServiceSettings, *, endpoint: str | None) -> "Presigner":
        """endpoint: as above; None is the one that the service uses itself."""
        secret = settings.s3_secret_key.get_secret_value()
        return cls(
            endpoint or settings.s3_endpoint, settings.s3_access_key, secret, bucket=settings.s3_bucket
        )

    def sign(self, asked: ObjectRequest, *, at: datetime) -> PresignedRequest:
        """Return the request that S3 lets pass from `at` on, on S3's clock. Whoever sends it sends no other headers
        that begin with `x-amz-`: S3 refuses them."""
        path = "" if asked.operation is Operation.LIST else f"/{quote(asked.key, safe='/~')}"
        query = urlencode(_query(asked), quote_via=quote)
        headers = _headers(asked)
        request = AWSRequest(
            method=METHODS[asked.operation],
            url=f"{self._endpoint}/{self._bucket}{path}{'?' if query else ''}{query}",
            headers=headers,
        )
        _AuthAt(self._credentials, at).add_auth(request)
        return PresignedRequest(
            method=METHODS[asked.operation], url=request.url, headers=headers, seconds=LIFE_SECONDS
        )


class StoreTime:
    """S3's time: that of its last answer, and what has passed since. No clock of a machine is part of it."""

    def __init__(
        self, endpoint: str, *, ca_file: Path | None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._endpoint = endpoint
        verify: Any = str(ca_file) if ca_file else True  # a path, too, whatever the stubs know
        self._http = URLLib3Session(verify=verify, timeout=ANSWER_SECONDS)
        self._monotonic = monotonic
        self._asking = asyncio.Lock()
        self._read: tuple[datetime, float] | None = None
        """Time of S3's last answer, and the monotonic time at which it came."""

    @classmethod
    def from_settings(cls, settings: ServiceSettings) -> "StoreTime":
        return cls(settings.s3_endpoint, ca_file=settings.tls.ca_file)

    async def now(self) -> datetime:
        """Return S3's time. Raises StorageUnavailable where S3 has never answered."""
        async with self._asking:
            if self._read is None or self._monotonic() > self._read[1] + LOOK_SECONDS:
                await self._ask()
        assert self._read is not None, "it was read, or raised"
        read, read_at = self._read
        return read + timedelta(seconds=self._monotonic() - read_at)

    async def _ask(self) -> None:
        request = AWSRequest(method="HEAD", url=f"{self._endpoint}/").prepare()
        try:
            answer = await asyncio.to_thread(self._http.send, request)
            self._read = parsedate_to_datetime(answer.headers["Date"]).astimezone(UTC), self._monotonic()
        except (BotoCoreError, KeyError, ValueError) as error:
            if self._read is None:
                raise StorageUnavailable(f"time of {self._endpoint}: {error}") from error


class _AuthAt(S3SigV4QueryAuth):
    """botocore's own signer of addresses, except for the time."""

    def __init__(self, credentials: Credentials, at: datetime) -> None:
        super().__init__(credentials, "s3", REGION, expires=LIFE_SECONDS)
        self._at = at

    def _modify_request_before_signing(self, request: Any) -> None:
        request.context["timestamp"] = self._at.astimezone(UTC).strftime(SIGV4_TIMESTAMP)
        super()._modify_request_before_signing(request)  # type: ignore[misc]


def _query(asked: ObjectRequest) -> dict[str, str]:
    match asked.operation:
        case Operation.LIST:
            begun = {"continuation-token": asked.continuation} if asked.continuation else {}
            return {"list-type": "2", "prefix": asked.key} | begun
        case Operation.START_UPLOAD:
            return {"uploads": ""}
        case Operation.PUT_PART:
            return {"partNumber": str(asked.part), "uploadId": asked.upload_id}
        case Operation.COMPLETE_UPLOAD | Operation.ABORT_UPLOAD:
            return {"uploadId": asked.upload_id}
    return {}


def _headers(asked: ObjectRequest) -> dict[str, str]:
    """What S3 must hold the sender to: size and digest of what it sends, and that nothing is overwritten."""
    match asked.operation:
        case Operation.PUT:
            return ONCE | _content(asked) | {"x-amz-meta-sha256": str(asked.sha256)}
        case Operation.START_UPLOAD:
            return {"x-amz-checksum-algorithm": "SHA256", "x-amz-meta-sha256": str(asked.sha256)}
        case Operation.PUT_PART:
            return _content(asked)
        case Operation.COMPLETE_UPLOAD:
            return dict(ONCE)
    return {}


def _content(asked: ObjectRequest) -> dict[str, str]:
    digest = base64.b64encode(bytes.fromhex(str(asked.sha256))).decode()
    return {"content-length": str(asked.size_bytes), "x-amz-checksum-sha256": digest}
