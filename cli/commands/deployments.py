"""retune deployments: what is served under which slot."""

from typing import Annotated, Any

import typer

from cli.changes import Changes
from cli.commands.context import api
from cli.output import show, show_table

app = typer.Typer(add_completion=False, help="What is served under which slot.", no_args_is_help=True)


@app.command("list")
def list_deployments() -> None:
    """List slots."""
    deployments = list(api().pages("/deployments"))
    rows = [(d["slot"], d["status"], d["generation"], d["digest"][:12], d["reason"]) for d in deployments]
    show_table(deployments, ("slot", "status", "generation", "digest", "reason"), rows)


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


def _print(deployment: dict[str, Any]) -> None:
    text = f"{deployment['slot']}: {deployment['status']}, generation {deployment['generation']}"
    show(deployment, text)
