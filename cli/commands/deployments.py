"""retune deployments: what is served under which slot."""

import itertools
from typing import Annotated, Any

import typer

from cli.changes import Changes
from cli.commands.context import api
from cli.commands.times import shown_duration, shown_time
from cli.output import show, show_table

STEPS = ("load", "read back", "probe", "route")
"""Steps of a swap in their order; the fetch of the files is part of the load."""

app = typer.Typer(add_completion=False, help="What is served under which slot.", no_args_is_help=True)


@app.command("list")
def list_deployments() -> None:
    """List slots."""
    deployments = list(api().pages("/deployments"))
    rows = [
        (d["slot"], d["status"], d["generation"], d["digest"][:12], _total(d), d["reason"])
        for d in deployments
    ]
    show_table(deployments, ("slot", "status", "generation", "digest", "swap", "reason"), rows)


@app.command()
def history(slot: str, limit: Annotated[int, typer.Option(min=1, help="The newest so many.")] = 20) -> None:
    """List what became of a slot's generations: how long each swap took, step by step, and roll-backs."""
    generations = list(itertools.islice(api().pages(f"/deployments/{slot}/history"), limit))
    columns = ("generation", "status", "approved", "digest", "swap", *STEPS, "what")
    show_table(generations, columns, map(_generation, generations))


@app.command(cls=Changes)
def deploy(
    model: str,
    slot: Annotated[str | None, typer.Option(help="A short alias, for a version in production.")] = None,
) -> None:
    """Serve a gated version, under its full name or under a slot."""
    _print(api().post(f"/models/{model}/deploy", {"slot": slot}))


@app.command(cls=Changes)
def rollback(slot: str) -> None:
    """Serve what the slot served before."""
    _print(api().post(f"/deployments/{slot}/rollback"))


@app.command(cls=Changes)
def remove(slot: str) -> None:
    """Stop serving a slot."""
    _print(api().delete(f"/deployments/{slot}"))


def _generation(generation: dict[str, Any]) -> tuple[object, ...]:
    back = generation["rolled_back_from"]
    what = generation["reason"] or (f"rolled back from {back[:12]}" if back else "")
    if generation["failed_step"]:
        what = f"{generation['failed_step'].replace('_', ' ')} failed: {what}"
    return (
        generation["generation"],
        generation["status"],
        shown_time(generation["approved_at"]),
        generation["digest"][:12],
        _total(generation),
        *_steps(generation["swap"]),
        what,
    )


def _total(deployment: dict[str, Any]) -> str:
    """Return how long its swap took; empty where that is not known, as by a platform of an older release."""
    swap = deployment.get("swap")
    return shown_duration(swap["total_seconds"]) if swap else ""


def _steps(swap: dict[str, Any] | None) -> list[str]:
    """Return how long each step took on the slowest replica; empty where every replica had the version already."""
    if not swap:
        return [""] * len(STEPS)
    taken = [
        (
            each["load_seconds"] + (each["fetch_seconds"] or 0.0),
            each["read_back_seconds"],
            each["probe_seconds"],
        )
        for each in swap["replicas"]
    ]
    longest = map(max, zip(*taken, strict=True)) if taken else ()
    on_replicas = [shown_duration(seconds) for seconds in longest] or [""] * (len(STEPS) - 1)
    return [*on_replicas, shown_duration(swap["route_seconds"])]


def _print(deployment: dict[str, Any]) -> None:
    text = f"{deployment['slot']}: {deployment['status']}, generation {deployment['generation']}"
    show(deployment, text)
