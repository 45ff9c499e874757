"""What a node asks trainer_agent for to reach objects in S3, and what it is given: requests that S3 lets pass.

A body is JSON, signed with the node's key (`shared/signatures.py`).
"""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated

from pydantic import Field, PositiveInt

from schemas.base import Attempt, Bytes, Count, JobId, Sha256, Value

ROUTE = "/v1/object-requests"
"""Route of trainer_agent, by POST."""
MAX_BODY_BYTES = 64 * 1024
MAX_REQUESTS = 32
MAX_PARTS = 10_000
"""So many parts an upload may have in S3."""
MAX_AGE = timedelta(minutes=2)
"""So far from now may be the time at which a node signed, in either direction."""
SIGNATURE_HEADER = "retune-signature"
"""Header of HTTP with the signature of the body, in base64."""

Key = Annotated[str, Field(min_length=1, max_length=1024)]


class Operation(StrEnum):
    """What is done with an object. The last four are an upload in parts; none takes an object away."""

    GET = "get"
    HEAD = "head"
    LIST = "list"
    PUT = "put"
    START_UPLOAD = "start_upload"
    PUT_PART = "put_part"
    COMPLETE_UPLOAD = "complete_upload"
    ABORT_UPLOAD = "abort_upload"


READS = frozenset({Operation.GET, Operation.HEAD})
WRITES = frozenset(Operation) - READS - {Operation.LIST}


class ObjectRequest(Value):
    """One request to S3."""

    operation: Operation
    key: Key
    """Key of the object; of a list the prefix."""
    sha256: Sha256 | None = None
    """Digest of what is written: of the whole object, or of a part."""
    size_bytes: Bytes | None = None
    """Size of what is sent with the request."""
    upload_id: str = ""
    """Name that S3 gave an upload of several parts."""
    part: Annotated[int, Field(ge=1, le=MAX_PARTS)] | None = None
    """Number of the part, from 1."""
    continuation: str = ""
    """Token of S3 at which a list goes on; empty: it begins."""


class AttemptNodeRequest(Value):
    """A request of a node of an attempt."""

    job_id: JobId
    attempt: Attempt
    node_index: Count
    node_id: str
    time: datetime
    """When the node signed it."""


class ObjectRequests(AttemptNodeRequest):
    """Objects that the node asks for at one time."""

    requests: Annotated[tuple[ObjectRequest, ...], Field(min_length=1, max_length=MAX_REQUESTS)]


class PresignedRequest(Value):
    """A request that S3 lets pass as it is, for some minutes."""

    method: str
    url: str = Field(repr=False)
    """Address with the signature in it: whoever has it may send the request."""
    headers: dict[str, str]
    """Headers that are signed, and must be sent."""
    seconds: PositiveInt
    """Time for which S3 lets it pass."""


class ObjectAnswer(Value):
    """What follows from one request."""

    request: PresignedRequest | None = None
    refused: str = ""
    """Why there is none."""


class ObjectAnswers(Value):
    answers: tuple[ObjectAnswer, ...]
    """By the order of the requests."""


class NotAnswered(Value):
    """Why nothing was looked at."""

    error: str
    time: datetime | None = None
    """Time of trainer_agent, for a node whose own is another."""
