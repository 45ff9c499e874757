"""retune doctor: does the stack hold what its design promises?"""

import asyncio
from datetime import timedelta
from typing import Annotated

import typer

from cli.commands.context import connection
from cli.output import note, show_table
from ops.doctor.examination import examine
from ops.doctor.history import Limits
from ops.doctor.invariants import INVARIANTS

app = typer.Typer(add_completion=False)

FOUND = 1


@app.command()
def doctor(
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every part in S3 and compare its bytes.")
    ] = False,
    grace: Annotated[float, typer.Option(help="Seconds in which news gets everywhere.", min=1)] = 30.0,
    stalled_after: Annotated[
        float, typer.Option(help="Seconds after which a job that says nothing is stuck.", min=1)
    ] = 1800.0,
) -> None:
    """Hold Postgres, the topics and S3 against the invariants I1 to I18. Exit code 1 where one is broken."""
    limits = Limits(timedelta(seconds=grace), timedelta(seconds=stalled_after))
    _, findings = asyncio.run(examine(connection(), limits, deep=deep, say=note))
    rows = [(each.invariant, each.where, each.found, each.expected) for each in findings]
    names = ("invariant", "where", "found", "expected")
    show_table([dict(zip(names, row, strict=True)) for row in rows], names, rows)
    if findings:
        note(f"{len(findings)} findings")
        raise typer.Exit(FOUND)
    note(f"{len(INVARIANTS)} invariants hold")
