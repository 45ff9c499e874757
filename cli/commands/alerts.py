"""retune alerts: what looks wrong with jobs while they train."""

import itertools
import time
from typing import Annotated, Any

import typer

from cli.commands.context import api
from cli.output import show_table

app = typer.Typer(add_completion=False)


@app.command()
def alerts(
    job: Annotated[str | None, typer.Option(help="Of this job alone.")] = None,
    is_open: Annotated[bool, typer.Option("--open", help="Those that are not cleared.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="The newest so many.")] = 50,
) -> None:
    """List what looks wrong with jobs while they train, newest first."""
    query = {"job_id": job, "open": "true" if is_open else None}
    newest = list(itertools.islice(api().pages("/alerts", **query), limit))
    show_table(newest, ("since", "until", "rule", "job", "step", "action", "what"), map(_row, newest))


def _row(alert: dict[str, Any]) -> tuple[object, ...]:
    until = alert["cleared_at"] and _local(alert["cleared_at"])
    what = alert["message"]
    return (
        _local(alert["created_at"]),
        until,
        alert["rule"],
        alert["job_id"],
        alert["step"],
        alert["action"],
        what,
    )


def _local(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
