"""What the node of an evaluation's lease reports to the evaluator, and what it is to do.

A body is JSON, signed with the node's key (`shared/signatures.py`). An order says what shall be scored, and not what
is to be done: whoever was away goes on from the next one.
"""

from typing import Annotated

from pydantic import Field, PositiveInt

from schemas.base import Bytes, FileRef, Seconds, Sha256, Value
from services.evaluator.scoring.order import Scores, WorkOrder
from services.evaluator.scoring.reports import Report
from shared.nodes.requests import Name, NodeRequest

REPORT_ROUTE = "/v1/scoring-nodes"
OBJECTS_ROUTE = "/v1/scoring-objects"
"""Routes of the evaluator, by POST."""
MAX_PROGRESS = 4096
MAX_TEXT = 1000
MAX_OUTCOME_BYTES = 256 * 1024 * 1024


class Work(Value):
    """What a node shall score."""

    eval_id: Name
    order: WorkOrder
    """The order, which names what it reads by keys in S3."""
    files: tuple[FileRef, ...]
    """Files of rows that it names."""
    threads: PositiveInt | None
    """Threads of the scoring child; None leaves it to its libraries."""
    silence_seconds: Seconds
    """Time after which a child that reports nothing is ended."""
    limit_seconds: Seconds
    """Time after which a child is ended in any case."""


class StoredOutcome(Value):
    """Where a run has ended: its outcome is in S3, below the evaluation."""

    sha256: Sha256
    size_bytes: Bytes


class ScoringReport(NodeRequest):
    """The state of an evaluation's node."""

    order_sha256: Sha256 | None = None
    """Digest of the order that it carries out; None: it has none."""
    progress: Annotated[tuple[Report, ...], Field(max_length=MAX_PROGRESS)] = ()
    """The child's newest report of each sort, and of each part and side."""
    problem: Annotated[str, Field(max_length=MAX_TEXT)] = ""
    """Why this node cannot carry it out; another one may."""
    outcome: StoredOutcome | None = None
    """None: it has not ended."""


class ScoringOrder(Value):
    """What shall be done on the node."""

    lease_seconds: Seconds
    """Time for which the lease is confirmed; the child ends itself then."""
    work: Work | None = None
    """None: nothing."""


class Outcome(Value):
    """How a run of the scoring child has ended on a node; an object in S3."""

    order_sha256: Sha256
    scores: Scores | None = None
    """None: there are none."""
    crash: str = ""
    """Why there are none."""
    log: str = ""
    """End of what the child wrote to its standard error."""
