"""retune relay: what a service has published, and whether the topics still have it."""

import asyncio
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import asyncpg
import typer

from cli.commands.context import connection
from cli.commands.times import parse_time
from cli.output import note, show_table
from ops.connection import postgres
from ops.errors import RefusedByPlatform, Unreachable
from ops.replay import aside
from ops.replay.missing_records import Compared, compare, is_set_up, republish, unsent
from schemas.topics import READERS, SERVICES
from shared.clock import utc_now
from shared.postgres.database import Database

app = typer.Typer(help="What services have published.", no_args_is_help=True)

ALL = "all"
WRITING = tuple(service for service in SERVICES if service not in READERS)
COLUMNS = ("service", "topic", "rows", "lost")
ASIDE_COLUMNS = (
    "service",
    "id",
    "topic",
    "aggregate_id",
    "sequence",
    "type",
    "bytes",
    "detail",
    "set_aside_at",
)
LATER_ARE_PUBLISHED = "RT001"
"""What `drop_set_aside` raises."""
SEND_SECONDS = 60.0
POLL_SECONDS = 0.2


@app.command("republish")
def republish_lost(
    service: Annotated[str, typer.Option(help="A service, or `all`.")],
    since: Annotated[str, typer.Option(help="Rows from then on: a time, or how long ago (2h).")],
    topic: Annotated[list[str] | None, typer.Option(help="May be given several times; default: all.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only compare; ends with 1 where some are lost.")
    ] = False,
) -> None:
    """Have the relay send again what is in the outbox and not in the topic any more, with the same ids."""
    asyncio.run(_republish(_checked(service), parse_time("--since", since), topic or [], dry_run=dry_run))


@app.command("set-aside")
def list_set_aside(
    service: Annotated[str, typer.Option(help="A service, or `all`.")] = ALL,
) -> None:
    """List the rows that are not sent, because Kafka refused them or one before them of their aggregate."""
    rows = asyncio.run(_list_set_aside(_checked(service)))
    show_table(rows, ASIDE_COLUMNS, [[row[name] for name in ASIDE_COLUMNS] for row in rows])


@app.command()
def send(service: str, row_id: int) -> None:
    """Send a row that was set aside again, with those of its aggregate."""
    count = asyncio.run(_send_set_aside(_checked(service, WRITING), row_id))
    note(f"{service} {row_id}: sent, {count} rows in all")


@app.command()
def drop(service: str, row_id: int, reason: Annotated[str, typer.Option(help="Kept with it.")]) -> None:
    """Leave a row that was set aside out for good. Nobody hears of it; those behind it take its number."""
    count = asyncio.run(_drop_set_aside(_checked(service, WRITING), row_id, reason))
    note(f"{service} {row_id}: dropped, {count} rows behind it are sent")


def _checked(service: str, names: Sequence[str] = (ALL, *WRITING)) -> str:
    if service not in names:
        raise typer.BadParameter(f"service: found {service!r}, expected one of {', '.join(names)}")
    return service


async def _list_set_aside(service: str) -> list[dict[str, Any]]:
    async with postgres(connection().require_postgres(), application="retune relay") as database:
        return [
            {"service": name, **row}
            for name in await _set_up(database, service)
            for row in await aside.list_set_aside(database, name)
        ]


async def _send_set_aside(service: str, row_id: int) -> int:
    async with postgres(connection().require_postgres(), application="retune relay") as database:
        ids = await aside.send(database, service, row_id)
        if not ids:
            raise _not_set_aside(service, row_id)
        await _until_sent(database, service, ids)
        if (detail := await aside.refusal_of(database, service, row_id)) is not None:
            raise RefusedByPlatform(f"{service} {row_id}: set aside again: {detail}")
        return len(ids)


async def _drop_set_aside(service: str, row_id: int, reason: str) -> int:
    async with postgres(connection().require_postgres(), application="retune relay") as database:
        try:
            released = await aside.drop(database, service, row_id, reason=reason)
        except asyncpg.PostgresError as error:
            if error.sqlstate != LATER_ARE_PUBLISHED:
                raise
            raise RefusedByPlatform(f"{service} {row_id}: {error}") from error
        if released is None:
            raise _not_set_aside(service, row_id)
        return released


def _not_set_aside(service: str, row_id: int) -> RefusedByPlatform:
    return RefusedByPlatform(f"{service} has no row {row_id} set aside; see `retune relay set-aside`")


async def _republish(service: str, since: datetime, topics: list[str], *, dry_run: bool) -> None:
    async with postgres(connection().require_postgres(), application="retune relay") as database:
        services = await _set_up(database, service)
        compared = await _compared(database, services, since, topics)
        lost = [each for each in compared if each.lost]
        if not dry_run:
            for each in lost:
                await _send_again(database, each)
            await _require_whole(await _compared(database, services, since, topics) if lost else [])
    _report(compared, dry_run=dry_run)


async def _set_up(database: Database, service: str) -> list[str]:
    """Those that have tables; a stack need not run them all."""
    names = WRITING if service == ALL else (service,)
    services = [name for name in names if await is_set_up(database, name)]
    if not services:
        raise RefusedByPlatform(f"{service}: found no outbox; its tables were never set up here")
    return services


async def _compared(
    database: Database, services: list[str], since: datetime, topics: list[str]
) -> list[Compared]:
    login, now = connection().kafka, utc_now()
    comparisons = [
        await compare(database, login, name, since=since, topics=topics, now=now) for name in services
    ]
    return [each for of_service in comparisons for each in of_service]


async def _send_again(database: Database, lost: Compared) -> None:
    count = await republish(database, lost)
    note(f"{lost.service}: {count} rows of {lost.topic} are sent again")
    await _until_sent(database, lost.service, lost.lost)


async def _until_sent(database: Database, service: str, ids: Sequence[int]) -> None:
    began = time.monotonic()
    while waiting := await unsent(database, service, ids):
        if time.monotonic() - began > SEND_SECONDS:
            raise Unreachable(
                f"{service} has not sent {waiting} rows within {SEND_SECONDS:g} s; they stay in its outbox: "
                "does its relay run? `retune status`"
            )
        await asyncio.sleep(POLL_SECONDS)


async def _require_whole(compared: list[Compared]) -> None:
    if still := [each for each in compared if each.lost]:
        first = still[0]
        raise RefusedByPlatform(
            f"{first.topic} still lacks {len(first.lost)} records that {first.service} has sent again"
        )


def _report(compared: list[Compared], *, dry_run: bool) -> None:
    rows = [(each.service, each.topic, each.rows, len(each.lost)) for each in compared]
    show_table([dict(zip(COLUMNS, row, strict=True)) for row in rows], COLUMNS, rows)
    lost = sum(len(each.lost) for each in compared)
    if not dry_run:
        note(f"{lost} records were lost and are in their topics again")
    elif lost:
        raise RefusedByPlatform(f"{lost} records are lost; without --dry-run they are sent again")
