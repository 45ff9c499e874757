"""What the program on the node of a lease sends to the service that holds the lease.

A body is JSON, signed with the node's key (`shared/signatures.py`).
"""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from schemas.base import Value
from schemas.object_requests import MAX_REQUESTS, ObjectRequest

MAX_BODY_BYTES = 1024 * 1024

Name = Annotated[str, Field(min_length=1, max_length=1024)]


class NodeRequest(Value):
    """A request of the node of a lease."""

    lease_id: Name
    node_id: Name
    time: datetime
    """When the node signed it."""


class LeaseObjects(NodeRequest):
    """Objects that the node asks for at one time."""

    requests: Annotated[tuple[ObjectRequest, ...], Field(min_length=1, max_length=MAX_REQUESTS)]
