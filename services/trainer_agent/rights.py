"""Pure: which objects a node of an attempt may read, list and write, and which of its requests are answered."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from schemas import layout
from schemas.object_requests import MAX_AGE, READS, WRITES, AttemptNodeRequest, ObjectRequest, Operation
from schemas.specification import Method, Recipe
from services.trainer_agent.model import Attempt
from shared.signatures import Signed

PART = re.compile(r"parts/(?P<sha256>[0-9a-f]{64})")
BUNDLE = re.compile(rf"[0-9]{{1,10}}/({re.escape(layout.MANIFEST)}|{PART.pattern})")
FEATURE = re.compile(rf"[0-9a-f]{{64}}(\.[0-9])?/({re.escape(layout.MANIFEST)}|{PART.pattern})")
LOG_CHUNK = re.compile(r"[0-9]{6,}")
ANYTHING = re.compile(r".*")
HAS_DIGEST = frozenset({Operation.PUT, Operation.START_UPLOAD})


@dataclass(frozen=True)
class Right:
    operations: frozenset[Operation]
    prefix: str
    rest: re.Pattern[str] = ANYTHING
    """What a key is after the prefix."""


class Refusal(StrEnum):
    """Why nothing is signed, in a word for metrics."""

    UNREADABLE = "unreadable"  # no request of the contract
    NOT_NOW = "not_now"  # Postgres or S3 is away, or the attempt's nodes are not known yet
    NO_NODE = "no_node"  # not a node of the attempt
    UNSIGNED = "unsigned"  # nothing proves who asks
    CLOCK = "clock"  # signed too long ago, or in the future
    OVER = "over"  # a newer attempt was scheduled, or the nodes were released
    FORBIDDEN = "forbidden"  # an object that the node may not have


def why_not_of_the_node(
    attempt: Attempt, asked: AttemptNodeRequest, signed: Signed, *, now: datetime, newest: int
) -> tuple[Refusal, str] | None:
    """Return why nothing proves that the node asks now, or why its attempt has no rights any more; None if neither.

    `newest`: number of the job's newest attempt.
    """
    if refused := why_not_proved(attempt, asked, signed, now=now):
        return refused
    if asked.attempt < newest:
        return Refusal.OVER, f"{_name_of(asked)}: attempt {newest} is the newest"
    if attempt.nodes_released:
        return Refusal.OVER, f"{_name_of(asked)}: its nodes were released"
    return None


def why_not_proved(
    attempt: Attempt, asked: AttemptNodeRequest, signed: Signed, *, now: datetime
) -> tuple[Refusal, str] | None:
    """Return why nothing proves that the node asks now; None where its signature does."""
    index, who = asked.node_index, _name_of(asked)
    if not attempt.has_node(index, asked.node_id):
        sentence = f"{who} ({asked.node_id}): not a node of the attempt, which has {attempt.nodes}"
        return Refusal.NO_NODE, sentence
    if attempt.public_keys is None:
        return Refusal.UNSIGNED, f"{who}: has no key, because its provisioner is of an older release"
    if not signed.is_by(attempt.public_keys[index]):
        return Refusal.UNSIGNED, f"{who}: the request is not signed with its key"
    if abs(now - asked.time) > MAX_AGE:
        expected = f"expected at most {MAX_AGE} from {now.isoformat()}"
        return Refusal.CLOCK, f"{who}: signed at {asked.time.isoformat()}, {expected}"
    return None


def _name_of(asked: AttemptNodeRequest) -> str:
    return f"node {asked.node_index} of attempt {asked.attempt} of {asked.job_id}"


def why_not_allowed(asked: ObjectRequest, attempt: Attempt, node_index: int) -> str:
    """Return why the node may not do this, with what it may; empty where it may."""
    what = f"{asked.operation} {asked.key}"
    if problem := _why_malformed(asked):
        return f"{what}: {problem}"
    rights = [right for right in rights_of(attempt, node_index) if asked.operation in right.operations]
    if any(_covers(right, asked) for right in rights):
        return ""
    expected = ", ".join(sorted({right.prefix for right in rights})) or "nothing"
    who = f"node {node_index} of attempt {attempt.number} of {attempt.job_id}"
    return f"{what}: not an object that {who} may {asked.operation}, expected one below {expected}"


def rights_of(attempt: Attempt, node_index: int) -> tuple[Right, ...]:
    """Return what the node may do. After the attempt's last fact that is to end its log."""
    job_id, number = attempt.job_id, attempt.number
    log = Right(READS | WRITES, layout.node_logs(job_id, number, node_index), LOG_CHUNK)
    if attempt.order is None or not attempt.is_open:
        return (log,)
    bundle = BUNDLE if node_index == 0 else re.compile(rf"[0-9]{{1,10}}/{PART.pattern}")
    return (
        log,
        *(Right(READS, prefix) for prefix in _inputs(attempt)),
        Right(READS | {Operation.LIST}, layout.checkpoints_of(job_id)),
        Right(WRITES, layout.checkpoints(job_id, number), bundle),
        *_features(attempt),
    )


def compares(recipe: Recipe) -> bool:
    """Return whether training compares its answers with those of the model that it started from."""
    return recipe.method is Method.DPO and recipe.preferences.has_reference


def _inputs(attempt: Attempt) -> Iterator[str]:
    """Return prefixes of what the attempt begins with."""
    order = attempt.order
    assert order is not None, "asked of attempts that were scheduled"
    yield layout.base_model(order.base_sha, "")
    yield layout.dataset(order.dataset.version, "")
    if (resume := order.resume) is not None:
        yield layout.checkpoint(resume.job_id or attempt.job_id, resume.attempt, resume.step, "")
    if (start := order.start_from) is None:
        return
    if start.digest is not None:
        yield layout.model(start.digest, "")
    else:
        yield layout.checkpoint(start.job_id, start.bundle.attempt, start.bundle.step, "")


def _features(attempt: Attempt) -> tuple[Right, ...]:
    order = attempt.order
    assert order is not None, "asked of attempts that were scheduled"
    if not compares(order.spec.recipe):
        return ()
    prefix = layout.features(order.dataset.version)
    return Right(READS | {Operation.LIST}, prefix), Right(WRITES, prefix, FEATURE)


def _covers(right: Right, asked: ObjectRequest) -> bool:
    if not asked.key.startswith(right.prefix):
        return False
    rest = right.rest.fullmatch(asked.key.removeprefix(right.prefix))
    if rest is None:
        return False
    # A part is named by its content, which S3 compares with what comes.
    named = rest.groupdict().get("sha256")
    return named is None or asked.operation not in HAS_DIGEST or named == asked.sha256


def _why_malformed(asked: ObjectRequest) -> str:
    names = asked.key.split("/")
    if asked.operation is Operation.LIST:
        names = names[:-1]
    if not asked.key.isprintable() or "\\" in asked.key or {"", ".", ".."} & {*names}:
        return "expected names between slashes, none of them empty, '.' or '..'"
    needed = _NEEDED.get(asked.operation, ())
    if missing := [name for name in needed if getattr(asked, name) in (None, "")]:
        return f"has no {' and no '.join(missing)}"
    return ""


_NEEDED = {
    Operation.PUT: ("sha256", "size_bytes"),
    Operation.START_UPLOAD: ("sha256",),
    Operation.PUT_PART: ("sha256", "size_bytes", "part", "upload_id"),
    Operation.COMPLETE_UPLOAD: ("upload_id",),
    Operation.ABORT_UPLOAD: ("upload_id",),
}
