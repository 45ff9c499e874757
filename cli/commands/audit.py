"""retune audit: are the topics what they were when the auditor read them?"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from cli.commands.context import connection
from cli.commands.times import parse_time
from cli.output import Output, show, show_table, stderr
from ops.audit.findings import Finding
from ops.audit.reading import Bound, Statements, recount
from ops.audit.recount import Recount
from ops.audit.statements import Walk
from ops.connection import Connection, postgres
from ops.errors import RefusedByPlatform, Unreachable
from shared.audit.signing import BadSignature, PublicKey
from shared.clock import utc_now
from shared.errors import StorageUnavailable
from shared.storage.objects import S3ObjectStore

app = typer.Typer(help="Proof that the topics are what they were.", no_args_is_help=True)

LATE = timedelta(minutes=5)
COLUMNS = ("what", "partition", "offsets", "statements", "")
LAST_NUMBER = "SELECT max(number) FROM auditor.operator_statement"


@app.callback()
def audit() -> None:
    """Typer would else take the only command for the noun itself."""


@app.command()
def verify(
    topic: Annotated[
        list[str] | None, typer.Option(help="May be given several times; default: all audited topics.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--from", help="First statement: its number, or a time. Default: the first.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Last statement: its number, or a time. Default: the newest.")
    ] = None,
) -> None:
    """Read statements and topics again and compare; ends with 1 where something was tampered with."""
    bounds = _bound("--from", since), _bound("--until", until)
    asyncio.run(_verify(frozenset(topic or ()), *bounds))


def _bound(option: str, text: str | None) -> Bound:
    if text is None or not text.isdigit():
        return parse_time(option, text) if text else None
    return int(text)


async def _verify(topics: frozenset[str], since: Bound, until: Bound) -> None:
    columns = TextColumn("{task.description}"), TextColumn("{task.completed}"), TimeElapsedColumn()
    with Progress(*columns, console=stderr) as progress:

        def counter(what: str) -> Callable[[int], None]:
            task = progress.add_task(what)
            return lambda more: progress.advance(task, more)

        examined = await examine(connection(), topics, since, until, counter=counter)
    _report(examined)


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
    counter: Callable[[str], Callable[[int], None]] = lambda what: lambda more: None,
) -> Examined:
    """`counter` makes the callback that gets how many more of something were read."""
    key, own = _public_key(connection), await _own_number(connection)  # first: more statements may come
    walk = await _walk(connection, key, since, until, counter("statements"))
    _require(topics, walk)
    findings, counts = await recount(
        connection.kafka,
        {place: each for place, each in walk.anchors.items() if place.topic in topics or not topics},
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
    connection: Connection, key: PublicKey, since: Bound, until: Bound, progress: Callable[[int], None]
) -> Walk:
    bucket = connection.require_bucket()
    objects = S3ObjectStore(bucket.endpoint, bucket.access_key, bucket.secret_key, bucket=bucket.name)
    try:
        walk = await (await Statements.open(objects, key)).walk(since, until, progress)
    except StorageUnavailable as error:
        raise Unreachable(str(error)) from error
    except BadSignature as error:
        raise RefusedByPlatform(str(error)) from error
    if walk.signed_at is None and not walk.findings:
        raise RefusedByPlatform(f"{bucket.endpoint}/{bucket.name} has no such statement of the auditor")
    return walk


def _require(topics: frozenset[str], walk: Walk) -> None:
    known = {place.topic for place in walk.anchors}
    if unknown := sorted(topics - known):
        raise typer.BadParameter(
            f"--topic: found {unknown[0]!r}, statements name {', '.join(sorted(known)) or 'none'}"
        )


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
    async with postgres(connection.postgres_dsn, application="retune audit") as database:
        number: int | None = await database.fetchval(LAST_NUMBER)
    return number


def _report(examined: Examined) -> None:
    walk, counts, findings = examined.walk, examined.counts, examined.findings
    figures = {
        "statements": [walk.first, walk.number],
        "signed_at": walk.signed_at.isoformat() if walk.signed_at else None,
        "partitions": len(counts),
        "records": sum(count.records for count in counts),
        "not_covered": sum(count.not_covered for count in counts),
    }
    if findings and not Output.as_json:
        show_table((), COLUMNS, [finding.row for finding in findings])
    show(figures | {"findings": [finding.value for finding in findings]}, _in_words(figures))
    if findings:
        raise RefusedByPlatform(
            f"{len(findings)} findings: the topics or the statements are not what they were"
        )


def _in_words(figures: dict[str, Any]) -> str:
    first, last = figures["statements"]
    return (
        f"statements {first}–{last}, the last of {figures['signed_at']}: {figures['records']} records of "
        f"{figures['partitions']} partitions were hashed again; {figures['not_covered']} are not covered"
    )
