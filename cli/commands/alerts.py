"""retune alerts: what looks wrong with jobs while they train, and which rules nobody is notified by."""

import itertools
from typing import Annotated, Any

import typer

from cli.changes import Changes
from cli.commands.context import api
from cli.commands.times import parse_until, shown_time
from cli.output import show, show_table
from schemas.alert import AlertRule

app = typer.Typer(
    add_completion=False,
    help="What looks wrong with jobs while they train, newest first; mutes of its rules.",
)
Job = Annotated[str | None, typer.Option(help="Of this job alone.")]


@app.callback(invoke_without_command=True)
def alerts(
    context: typer.Context,
    job: Job = None,
    is_open: Annotated[bool, typer.Option("--open", help="Those that are not cleared.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="The newest so many.")] = 50,
) -> None:
    if context.invoked_subcommand is not None:
        return
    query = {"job_id": job, "open": "true" if is_open else None}
    newest = list(itertools.islice(api().pages("/alerts", **query), limit))
    columns = ("since", "until", "rule", "job", "step", "value", "limit", "action", "muted by", "what")
    show_table(newest, columns, map(_row, newest))


@app.command("mutes")
def list_mutes() -> None:
    """List rules that nobody is notified by."""
    mutes = list(api().pages("/alerts/mutes"))
    rows = [
        (each["rule"], each["job_id"] or "all", _end(each), each["muted_by"], shown_time(each["created_at"]))
        for each in mutes
    ]
    show_table(mutes, ("rule", "job", "until", "by", "since"), rows)


@app.command(cls=Changes)
def mute(
    rule: AlertRule,
    job: Job = None,
    until: Annotated[
        str | None,
        typer.Option(help="RFC 3339 in UTC, or how long from now: 30m, 8h, 7d. Without it: for good."),
    ] = None,
) -> None:
    """Notify nobody of alerts by a rule. They are raised as before, and pause or stop jobs whose options say so."""
    ends_at = parse_until("--until", until).isoformat() if until else None
    body = {"rule": rule.value, "job_id": job, "until": ends_at}
    muted = api().post("/alerts/mutes", body)
    show(muted, f"{muted['rule']} of {muted['job_id'] or 'all jobs'}: muted {_end(muted, 'until ')}")


@app.command(cls=Changes)
def unmute(rule: AlertRule, job: Job = None) -> None:
    """Notify of alerts by a rule again."""
    answer = api().delete(f"/alerts/mutes/{rule.value}{f':{job}' if job else ''}")
    show(answer, f"{rule.value} of {job or 'all jobs'}: not muted")


def _row(alert: dict[str, Any]) -> tuple[object, ...]:
    mute = alert.get("mute")
    return (
        shown_time(alert["created_at"]),
        shown_time(alert["cleared_at"]),
        alert["rule"],
        alert["job_id"],
        alert["step"],
        _measured(alert["value"], alert.get("unit")),
        _measured(alert["limit"], alert.get("unit")),
        alert["action"],
        f"{mute['muted_by']} {_end(mute, 'until ')}" if mute else "",
        alert["message"],
    )


def _end(mute: dict[str, Any], before: str = "") -> str:
    return f"{before}{shown_time(mute['until'])}" if mute["until"] else "for good"


def _measured(value: float | None, unit: str | None) -> str:
    """Return a number with its unit; that of a loss is its name."""
    match value, unit:
        case None, _:
            return ""
        case _, "fraction":
            return f"{value:.1%}"
        case _, "seconds":
            return f"{value:.0f} s"
        case _, "bytes":
            return f"{value / 2**30:.2f} GiB"
        case _, "tokens_per_second":
            return f"{value:,.0f} tokens/s"
        case _, "us_dollars":
            return f"${value:,.2f}"
    return f"{value:.4g}"
