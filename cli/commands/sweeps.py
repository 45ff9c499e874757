"""retune sweeps: several configurations of one job, and the best of them."""

import itertools
import json
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.changes import Changes
from cli.commands.context import DryRun, api, upload_rows
from cli.commands.numbers import setting
from cli.output import show, show_table
from ops.errors import RefusedByPlatform

app = typer.Typer(
    add_completion=False, help="Sweeps: trials of one job with other numbers.", no_args_is_help=True
)

SWEEPS = "/sweeps"
Sweep = Annotated[str, typer.Argument(metavar="SWEEP", help="Its id: sweep-…")]
FILES = (("job", "training_file"), ("job", "validation_file"), ("job", "retune", "holdout_file"))
"""Where a sweep names files: paths beside it are uploaded."""


@app.command()
def create(
    file: Annotated[Path, typer.Argument(metavar="SWEEP.TOML", help="The sweep as TOML or JSON.")],
    dry_run: DryRun = False,
) -> None:
    """Begin a sweep. Files of its job are paths, from where the sweep's file is, or ids of uploaded files."""
    body = _read(file)
    for path in FILES:
        _upload(body, path, file.parent)
    sweep = api().post(f"{SWEEPS}?dry_run=true" if dry_run else SWEEPS, body)
    show(sweep, "nothing has begun: it can" if dry_run else sweep["id"])


@app.command("list")
def list_sweeps(
    limit: Annotated[int, typer.Option(min=1, help="The newest so many.")] = 50,
) -> None:
    """List sweeps, newest first."""
    newest = list(itertools.islice(api().pages(SWEEPS), limit))
    rows = [
        (
            each["id"],
            each["name"],
            each["state"],
            f"{sum(each['trials_by_state'].values())} of {each['search']['num_trials']}",
            _loss(each["best"]),
            each["gate"],
            each["cost_usd"],
        )
        for each in newest
    ]
    show_table(newest, ("id", "name", "state", "trials", "best loss", "gate", "cost USD"), rows)


@app.command("show")
def show_sweep(sweep_id: Sweep) -> None:
    """Show the trials of a sweep, the best one first."""
    sweep = api().get(f"{SWEEPS}/{sweep_id}")
    names = list(sweep["search"]["parameters"])
    trials = sorted(sweep["trials"], key=_rank)
    rows = [
        (
            each["number"],
            each["state"],
            _loss(each),
            *(setting(each["parameters"].get(name)) for name in names),
            each["cost_usd"],
            each["job_id"],
            each["message"],
        )
        for each in trials
    ]
    show_table([sweep], ("trial", "state", "loss", *names, "cost USD", "job", "what"), rows)


@app.command(cls=Changes)
def cancel(sweep_id: Sweep) -> None:
    """Begin no more trials and cancel those that run; none goes to the gate."""
    sweep = api().post(f"{SWEEPS}/{sweep_id}/cancel")
    show(sweep, f"{sweep_id}: {sweep['state']}")


def _read(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text()
        body = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise RefusedByPlatform(f"{file}: {error}") from error
    if not isinstance(body, dict):
        raise RefusedByPlatform(f"{file}: found a {type(body).__name__}, expected a table")
    return body


def _upload(body: dict[str, Any], path: tuple[str, ...], folder: Path) -> None:
    """Put the id of the uploaded file in the place of a path."""
    *outer, name = path
    part: Any = body
    for each in outer:
        part = part.get(each) if isinstance(part, dict) else None
    value = part.get(name) if isinstance(part, dict) else None
    if isinstance(value, str) and not value.startswith("file-"):
        part[name] = upload_rows(folder / value)["id"]


def _rank(trial: dict[str, Any]) -> tuple[bool, float, int]:
    loss = trial["valid_loss"] if trial["state"] == "completed" else None
    return loss is None, loss or 0.0, trial["number"]


def _loss(trial: dict[str, Any] | None) -> str:
    return "" if trial is None or trial["valid_loss"] is None else f"{trial['valid_loss']:.4g}"
