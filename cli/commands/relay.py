"""retune relay: what a service has published, and whether the topics still have it."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Annotated, Any

import typer

from cli.changes import Changes, plan_last
from cli.commands.context import connection
from cli.commands.times import parse_time
from cli.output import note, show_table
from ops.clients import postgres
from ops.errors import RefusedByPlatform
from ops.relay import set_aside
from ops.relay.missing_records import Comparison, Search, find_missing, send_again
from ops.relay.outbox import ALL, PUBLISHERS, publishers
from shared.postgres.database import Database

app = typer.Typer(add_completion=False, help="What services have published.", no_args_is_help=True)

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


@app.command(cls=Changes)
def send(service: str, row_id: int) -> None:
    """Send a row that was set aside again, with those of its aggregate."""
    _checked(service, PUBLISHERS)
    plan_last(f"send again row {row_id} of {service}, which was set aside", service=service, row=row_id)
    count = asyncio.run(_send(service, row_id))
    note(f"{service} {row_id}: sent, {count} rows in all")


@app.command(cls=Changes)
def drop(service: str, row_id: int, reason: Annotated[str, typer.Option(help="Kept with it.")]) -> None:
    """Leave a row that was set aside out for good. Nobody hears of it; those behind it take its number."""
    _checked(service, PUBLISHERS)
    plan_last(
        f"drop row {row_id} of {service}, which was set aside", service=service, row=row_id, reason=reason
    )
    count = asyncio.run(_drop(service, row_id, reason))
    note(f"{service} {row_id}: dropped, {count} rows behind it are sent")


def _checked(service: str, names: Sequence[str] = (ALL, *PUBLISHERS)) -> str:
    if service not in names:
        raise typer.BadParameter(f"service: found {service!r}, expected one of {', '.join(names)}")
    return service


async def _list_set_aside(service: str) -> list[dict[str, Any]]:
    async with _postgres() as database:
        return await set_aside.list_set_aside(database, service)


async def _send(service: str, row_id: int) -> int:
    async with _postgres() as database:
        return await set_aside.send(database, service, row_id)


async def _drop(service: str, row_id: int, reason: str) -> int:
    async with _postgres() as database:
        return await set_aside.drop(database, service, row_id, reason=reason)


async def _republish(service: str, since: datetime, topics: list[str], *, dry_run: bool) -> None:
    login = connection().kafka
    async with _postgres() as database:
        search = Search(await publishers(database, service), since, frozenset(topics))
        compared = await find_missing(database, login, search)
        if not dry_run and (missing := [each for each in compared if each.lost]):
            await send_again(database, login, search, missing, say=note)
    _report(compared, dry_run=dry_run)


def _postgres() -> AbstractAsyncContextManager[Database]:
    return postgres(connection(), application="retune relay")


def _report(compared: list[Comparison], *, dry_run: bool) -> None:
    rows = [(each.service, each.topic, each.rows, len(each.lost)) for each in compared]
    show_table([dict(zip(COLUMNS, row, strict=True)) for row in rows], COLUMNS, rows)
    lost = sum(len(each.lost) for each in compared)
    if not dry_run:
        note(f"{lost} records were lost and are in their topics again")
    elif lost:
        raise RefusedByPlatform(f"{lost} records are lost; without --dry-run they are sent again")
