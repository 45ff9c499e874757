"""retune replay: records again as they were."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import typer

from cli.commands.context import connection
from cli.commands.times import parse_time
from cli.output import note, show_table
from ops.errors import RefusedByPlatform
from ops.replay.replay import replay as replay_records
from ops.replay.selection import Bound, Selection
from ops.replay.targets import DRY_RUN, STDOUT, Counting
from schemas.topics import is_audited

app = typer.Typer(add_completion=False)

COLUMNS = ("topic", "type", "records", "first", "last")
EARLIEST = "earliest"


@app.command()
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
    counts, outcome = asyncio.run(replay_records(connection().kafka, selection, to))
    _report(counts, outcome, selection.topics, to)


def _known(topics: list[str]) -> tuple[str, ...]:
    for name in topics:
        if not is_audited(name) and name != "run.metrics":
            raise typer.BadParameter(f"--topic: found {name!r}, which is no topic of the platform")
    return tuple(dict.fromkeys(topics))


def _bound(option: str, text: str | None) -> Bound:
    if text is None or text == EARLIEST:
        return None
    return int(text) if text.isdigit() else parse_time(option, text)


def _report(counts: Counting, outcome: str, topics: Sequence[str], to: str) -> None:
    if to != STDOUT:
        rows = counts.rows()
        show_table([dict(zip(COLUMNS, row, strict=True)) for row in rows], COLUMNS, rows)
    note(f"{counts.total} records {outcome}")
    if not counts.total:
        raise RefusedByPlatform(f"no record of {', '.join(topics)} is within these bounds")
