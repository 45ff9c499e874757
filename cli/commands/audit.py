"""retune audit: are the topics what they were when the auditor read them?"""

import asyncio
from typing import Annotated, Any

import typer
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from cli.commands.context import connection
from cli.commands.times import parse_time
from cli.output import Output, show, show_table, stderr
from ops.audit import reading
from ops.audit.reading import Bound
from ops.audit.verification import Examined, UnknownTopic, examine
from ops.errors import RefusedByPlatform

app = typer.Typer(
    add_completion=False, help="Proof that the topics are what they were.", no_args_is_help=True
)

COLUMNS = ("what", "partition", "offsets", "statements", "")


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

        def counter(what: str) -> reading.Progress:
            task = progress.add_task(what)
            return lambda more: progress.advance(task, more)

        try:
            examined = await examine(connection(), topics, since, until, counter=counter)
        except UnknownTopic as error:
            raise typer.BadParameter(f"--topic: {error}") from error
    _report(examined)


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
