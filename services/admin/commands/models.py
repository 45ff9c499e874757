"""retune models: base models, fine-tuned versions, lineage."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from schemas.model import BaseModelRegistered, DirectorySource, HubSource, RegisterBaseModel
from services.admin import bus
from services.admin.commands.context import api, connection
from services.admin.output import show, show_table

app = typer.Typer(help="Base models and fine-tuned versions.", no_args_is_help=True)

REGISTER_SECONDS = 1800.0


@app.command("register-base")
def register_base(
    name: str,
    source: Annotated[str, typer.Argument(help="A directory, or hub:<repository>@<commit>.")],
) -> None:
    """Register a base model; its files are mirrored and known by their sha."""
    command = RegisterBaseModel(name=name, source=_source(source))
    fact = bus.command(connection(), command, until=[BaseModelRegistered], seconds=REGISTER_SECONDS)
    assert isinstance(fact, BaseModelRegistered)
    show(fact.model_dump(mode="json"), f"{fact.name}: {fact.num_parameters} parameters, sha {fact.base_sha}")


@app.command("list")
def list_models(
    kind: Annotated[str | None, typer.Option("--type", help="base or fine-tuned")] = None,
    base_model: str | None = None,
) -> None:
    """List base models and own versions."""
    models = api().get("/models", type=kind, base_model=base_model)["data"]
    rows = [
        (m["id"], m["retune"]["kind"], m["retune"].get("stage"), _holdout(m), m["retune"].get("model_id"))
        for m in models
    ]
    show_table(models, ("name", "kind", "stage", "holdout", "id"), rows)


@app.command("show")
def show_model(name: str) -> None:
    """Show a model."""
    _print(api().get(f"/models/{name}"))


@app.command()
def lineage(name: str) -> None:
    """Show what a version was made of: base, data, recipe, job, verdict."""
    _print(api().get(f"/models/{name}/lineage"))


@app.command()
def evaluation(name: str) -> None:
    """Show the gate's verdict with every number."""
    verdict = api().get(f"/models/{name}/evaluation")
    rows = [
        (
            stage["stage"],
            stage["outcome"],
            check["name"],
            check["metric"],
            _round(check["value"]),
            _round(check["baseline"]),
            _round(check["threshold"]),
            check["count"],
        )
        for stage in verdict["stages"]
        for check in stage["checks"]
        or [dict.fromkeys(("name", "metric", "value", "baseline", "threshold", "count"))]
    ]
    columns = ("stage", "outcome", "check", "metric", "value", "base", "threshold", "items")
    show_table([verdict], columns, rows)


@app.command()
def promote(
    name: str,
    accept_without_holdout: Annotated[
        bool,
        typer.Option("--accept-without-holdout", help="Approve a version that was gated without a holdout."),
    ] = False,
    reason: Annotated[str, typer.Option(help="Why; kept with the approval.")] = "",
) -> None:
    """Approve a staged version for production."""
    body = {"accept_without_holdout": accept_without_holdout, "reason": reason}
    model = api().post(f"/models/{name}/promote", body)
    show(model, f"{model['id']}: {model['retune']['stage']}")


@app.command()
def archive(name: str) -> None:
    """Retire a version."""
    model = api().post(f"/models/{name}/archive")
    show(model, f"{model['id']}: {model['retune']['stage']}")


def _holdout(model: dict[str, Any]) -> str:
    """Whether it was held against rows of its own task; empty for base models and what did not pass."""
    found = {True: "yes", False: "none"}.get(model["retune"].get("has_holdout"), "")
    return "none, accepted" if model["retune"].get("accepted_without_holdout") else found


def _source(text: str) -> DirectorySource | HubSource:
    if text.startswith("hub:"):
        repository, _, commit = text.removeprefix("hub:").partition("@")
        if len(commit) != 40:
            raise typer.BadParameter(
                f"source: found {text!r}, expected hub:<repository>@<commit of 40 digits>"
            )
        return HubSource(repository=repository, commit=commit)
    path = Path(text)
    if not path.is_dir():
        raise typer.BadParameter(f"source: {text!r} is not a directory")
    return DirectorySource(path=str(path.resolve()))


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _print(value: object) -> None:
    show(value, json.dumps(value, indent=1, ensure_ascii=False))
