"""retune replay: records again as they were, or a service's state made again from them."""

import asyncio
from typing import Annotated

import typer

from cli.commands.context import connection
from cli.commands.times import parse_time
from cli.output import Output, note, show_table
from ops.errors import RefusedByPlatform
from ops.replay import targets
from ops.replay.selection import Bound, Selection
from ops.replay.targets import DRY_RUN, STDOUT, Counting
from ops.state_verification import VERIFIABLE
from schemas.topics import is_audited
from shared.clock import utc_now

DIFFERENCES = ("what", "key", "field", "live", "rebuilt")
COLUMNS = ("topic", "type", "records", "first", "last")
EARLIEST = "earliest"


def replay(
    topic: Annotated[list[str] | None, typer.Option(help="May be given several times.")] = None,
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
    verify: Annotated[
        str | None, typer.Option(help="A service: make its state again from its topics and compare.")
    ] = None,
) -> None:
    """Read records again, in no service's group, and count, keep or send them; or verify a service's state."""
    if verify is not None:
        asyncio.run(_verify(verify))
        return
    selection = Selection(_known(topic), _bound("--from", since), _bound("--until", until), job)
    asyncio.run(_replay(selection, to))


def _known(topics: list[str] | None) -> tuple[str, ...]:
    if not topics:
        raise typer.BadParameter("--topic: give at least one")
    for name in topics:
        if not is_audited(name) and name != "run.metrics":
            raise typer.BadParameter(f"--topic: found {name!r}, which is no topic of the platform")
    return tuple(dict.fromkeys(topics))


def _bound(option: str, text: str | None) -> Bound:
    if text is None or text == EARLIEST:
        return None
    return int(text) if text.isdigit() else parse_time(option, text)


async def _verify(service: str) -> None:
    if service not in VERIFIABLE:
        raise typer.BadParameter(f"--verify: found {service!r}, expected one of {', '.join(VERIFIABLE)}")
    from ops.state_verification.verify import verify  # with all that a service is made of

    verified = await verify(connection(), service, note)
    differences = verified.differences
    if differences or Output.as_json:
        show_table([each.value for each in differences], DIFFERENCES, [each.row for each in differences])
    if differences:
        raise RefusedByPlatform(
            f"{service}: {len(differences)} differences between its rows and what its topics make"
        )
    note(
        f"{service}: {verified.rows} rows and {verified.events} events are what {verified.messages} messages make"
    )


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
