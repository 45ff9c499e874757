"""retune replay: records again as they were."""

import asyncio
from typing import Annotated

import typer

from cli.commands.context import connection
from cli.commands.times import parse_time
from cli.output import note, show_table
from ops.errors import RefusedByPlatform
from ops.replay import targets
from ops.replay.selection import Bound, Selection
from ops.replay.targets import DRY_RUN, STDOUT, Counting
from schemas.topics import is_audited
from shared.clock import utc_now

COLUMNS = ("topic", "type", "records", "first", "last")
EARLIEST = "earliest"


def replay(
    topic: Annotated[list[str], typer.Option(help="May be given several times.")],
    since: Annotated[
        str,
        typer.Option("--from", help="A time, how long ago (2h), an offset of each partition, or `earliest`."),
    ] = EARLIEST,
    until: Annotated[
        str | None, typer.Option(help="A time or an offset, itself left out. Default: the end as it is now.")
    ] = None,
    job: Annotated[str | None, typer.Option(help="Only what is about this job.")] = None,
    to: Annotated[
        str, typer.Option(help="A new file (JSON lines; - is stdout), a command topic, or `dry-run`: count.")
    ] = DRY_RUN,
) -> None:
    """Read records again, in no service's group, and count, keep or send them."""
    selection = Selection(_known(topic), _bound("--from", since), _bound("--until", until), job)
    asyncio.run(_replay(selection, to))


def _known(topics: list[str]) -> tuple[str, ...]:
    for name in topics:
        if not is_audited(name) and name != "run.metrics":
            raise typer.BadParameter(f"--topic: found {name!r}, which is no topic of the platform")
    return tuple(dict.fromkeys(topics))


def _bound(option: str, text: str | None) -> Bound:
    if text is None or text == EARLIEST:
        return None
    return int(text) if text.isdigit() else parse_time(option, text)


async def _replay(selection: Selection, to: str) -> None:
    login = connection().kafka
    if targets.sends_to_topic(to):
        targets.require_sendable(to, selection)
        async for record in selection.read(login):
            targets.admit(record, now=utc_now())
    counted = Counting()
    async with targets.opened(to, login) as target:
        async for record in selection.read(login):
            await counted.take(record)
            await target.take(record)
    if to != STDOUT:
        show_table([dict(zip(COLUMNS, row, strict=True)) for row in counted.rows()], COLUMNS, counted.rows())
    note(f"{counted.total} records {target.outcome}")
    if not counted.total:
        raise RefusedByPlatform(f"no record of {', '.join(selection.topics)} is within these bounds")
