"""`audit/<number>.json`: how far the auditor has read which partitions, signed, each naming the one before."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from schemas.base import Count, Sha256, Value

NOTHING_BEFORE = "0" * 64
"""`previous_sha256` of the first statement."""
Milliseconds = Annotated[int, Field(description="milliseconds since 1970, of the producer's clock")]


class PartitionRead(Value):
    """All records from `start_offset` up to `next_offset` hash to `link` (see shared/audit/chain.py)."""

    topic: str
    partition: Count
    start_offset: Count
    next_offset: Count
    link: Sha256
    oldest_ms: Milliseconds | None = None
    """Least time of the records that were read since the statement before; None where there were none."""
    newest_ms: Milliseconds | None = None


class Statement(Value):
    number: Annotated[int, Field(ge=1)]
    previous_sha256: Sha256
    """sha256 of the whole object that holds the statement before."""
    signed_at: datetime
    partitions: tuple[PartitionRead, ...]
    is_full: bool = True
    """Whether all partitions are named, or only those that moved since the statement before."""
    heads_sha256: Sha256 | None = None
    """sha256 of the heads of all partitions, named here or not (see shared/audit/heads.py); None in older ones."""


class SignedStatement(Value):
    """The object: the signature is over the UTF-8 bytes of `statement`, so that nothing is written twice."""

    statement: str
    """JSON of a Statement."""
    signature: str
    """Ed25519 signature, base64."""
    key_sha256: Sha256
    """sha256 of the raw public key."""
