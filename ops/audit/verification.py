"""`retune audit verify`: are statements and topics what they were when the auditor signed them?"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from ops.audit.findings import Finding
from ops.audit.reading import Bound, Progress, Statements, recount
from ops.audit.recount import Recount
from ops.audit.statements import Walk
from ops.clients import object_store, postgres
from ops.connection import Connection
from ops.errors import RefusedByPlatform, Unreachable
from shared.audit.signing import BadSignature, PublicKey
from shared.clock import utc_now
from shared.errors import StorageUnavailable

LATE = timedelta(minutes=5)
LAST_NUMBER = "SELECT max(number) FROM auditor.operator_statement"


class UnknownTopic(ValueError):
    """No statement names the topic that was asked for."""


@dataclass(frozen=True)
class Examined:
    walk: Walk
    counts: list[Recount]
    findings: list[Finding]


async def examine(
    connection: Connection,
    topics: frozenset[str] = frozenset(),
    since: Bound = None,
    until: Bound = None,
    *,
    counter: Callable[[str], Progress] = lambda what: lambda more: None,
) -> Examined:
    """`counter` makes the callback that gets how many more of something were read. Raises UnknownTopic."""
    key, own = _public_key(connection), await _own_number(connection)  # first: more statements may come
    walk = await _walk(connection, key, since, until, counter("statements"))
    _require_known(topics, walk)
    findings, counts = await recount(
        connection.kafka,
        {
            partition: each
            for partition, each in walk.anchors.items()
            if partition.topic in topics or not topics
        },
        now=utc_now(),
        progress=counter("records"),
    )
    missing = [] if until is not None else _missing_at_the_end(walk, own)
    return Examined(walk, counts, [*walk.findings, *missing, *findings])


def _public_key(connection: Connection) -> PublicKey:
    try:
        return PublicKey.read(Path(connection.audit_public_key_file))
    except (OSError, ValueError) as error:
        raise Unreachable(
            f"RETUNE_AUDIT_PUBLIC_KEY_FILE: {error}; the auditor writes it when it starts"
        ) from error


async def _walk(
    connection: Connection, key: PublicKey, since: Bound, until: Bound, progress: Progress
) -> Walk:
    bucket = connection.require_bucket()
    try:
        walk = await (await Statements.open(object_store(bucket), key)).walk(since, until, progress)
    except StorageUnavailable as error:
        raise Unreachable(str(error)) from error
    except BadSignature as error:
        raise RefusedByPlatform(str(error)) from error
    if walk.signed_at is None and not walk.findings:
        raise RefusedByPlatform(f"{bucket.endpoint}/{bucket.name} has no such statement of the auditor")
    return walk


def _require_known(topics: frozenset[str], walk: Walk) -> None:
    known = {partition.topic for partition in walk.anchors}
    if unknown := sorted(topics - known):
        raise UnknownTopic(f"found {unknown[0]!r}, statements name {', '.join(sorted(known)) or 'none'}")


def _missing_at_the_end(walk: Walk, own: int | None) -> list[Finding]:
    """Statements that were taken away from the end leave a whole chain: the auditor and the clock know better."""
    if own is not None and own > walk.number:
        detail = f"missing are {walk.number + 1}–{own}, of which the auditor says that they are there"
        return [Finding("statement", detail, between=(walk.number, own))]
    if walk.signed_at and utc_now() - walk.signed_at > LATE:
        detail = f"nothing was signed since {walk.signed_at:%Y-%m-%d %H:%M:%S}: does the auditor run?"
        return [Finding("late", detail, between=(walk.number, walk.number))]
    return []


async def _own_number(connection: Connection) -> int | None:
    """What the auditor has put last, by its own schema; None where no role was given to read it."""
    if not connection.postgres_dsn:
        return None
    async with postgres(connection, application="retune audit") as database:
        number: int | None = await database.fetchval(LAST_NUMBER)
    return number
