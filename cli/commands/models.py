"""retune models: base models, fine-tuned versions, lineage."""

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from cli import kafka_commands
from cli.changes import Changes
from cli.commands.base_models import described, described_model
from cli.commands.context import admin_api, api, connection
from cli.commands.watch import how_far
from cli.downloads import fetch, require_plain_names
from cli.output import note, show, show_table, stderr
from ops.errors import RefusedByPlatform
from schemas.model import (
    MAX_TEMPLATE_CHARACTERS,
    BaseModelRegistered,
    DirectorySource,
    HubSource,
    ModelRegistered,
    PromotionRefused,
    RegisterArtifact,
    RegisterBaseModel,
)

app = typer.Typer(add_completion=False, help="Base models and fine-tuned versions.", no_args_is_help=True)

REGISTER_SECONDS = 1800.0
AUTO = "auto"
POLL_SECONDS = 1.0
MAX_CELL = 120
"""Characters of a text in a table of items."""


@app.command("register-base", cls=Changes)
def register_base(
    name: str,
    source: Annotated[str, typer.Argument(help="A directory, or hub:<repository>@<commit>.")],
    training_template: Annotated[
        str,
        typer.Option(
            help="A file: the model's template with {% generation %} around what the assistant says. "
            "auto: as the model's own template marks it, or derived from what that writes."
        ),
    ] = AUTO,
) -> None:
    """Register a base model; its files are mirrored and known by their sha."""
    command = RegisterBaseModel(
        name=name, source=_source(source), training_template=_training_template(training_template)
    )
    fact = kafka_commands.command(
        connection(), command, until=[BaseModelRegistered], seconds=REGISTER_SECONDS
    )
    assert isinstance(fact, BaseModelRegistered)
    show(fact.model_dump(mode="json"), described(fact))


@app.command("register-artifact", cls=Changes)
def register_artifact(job_id: str, tenant: Annotated[str, typer.Option(help="Whose job it is.")]) -> None:
    """Copy once more what a job trained that ended without a model, for its copy had failed."""
    fact = kafka_commands.command(
        connection(),
        RegisterArtifact(job_id=job_id, tenant=tenant),
        until=[ModelRegistered, PromotionRefused],
        seconds=REGISTER_SECONDS,
    )
    if isinstance(fact, PromotionRefused):
        raise RefusedByPlatform(f"{fact.code}: {fact.message}")
    assert isinstance(fact, ModelRegistered)
    show(fact.model_dump(mode="json"), f"{fact.full_name} ({fact.model_id}); evaluate it with its gate next")


@app.command("register-checkpoint", cls=Changes)
def register_checkpoint(checkpoint: str) -> None:
    """Make a model version of a kept checkpoint (ftckpt-…) of a job that is over; `evaluate` it next."""
    job_id = checkpoint.removeprefix("ftckpt-").rsplit("-", 2)[0]
    version = api().post(f"/fine_tuning/jobs/{job_id}/checkpoints/{checkpoint}/register")
    name = version["id"]
    show(version, f"{name}; its gate comes next: `retune models evaluate {name}`")


@app.command("list")
def list_models(
    kind: Annotated[str | None, typer.Option("--type", help="base or fine-tuned")] = None,
    base_model: str | None = None,
) -> None:
    """List base models and own versions."""
    models = list(api().pages("/models", type=kind, base_model=base_model))
    rows = [
        (m["id"], m["retune"]["kind"], m["retune"].get("stage"), _holdout(m), m["retune"].get("model_id"))
        for m in models
    ]
    show_table(models, ("name", "kind", "stage", "holdout", "id"), rows)


@app.command("show")
def show_model(name: str) -> None:
    """Show a model: a base model with what it can do."""
    model = api().get(f"/models/{name}")
    if model["retune"]["kind"] == "base":
        show(model, described_model(model["id"], model["retune"]))
    else:
        _print(model)


@app.command()
def lineage(name: str) -> None:
    """Show what a version was made of: base, data, recipe, job, verdict."""
    _print(api().get(f"/models/{name}/lineage"))


@app.command()
def evaluation(
    name: str,
    items: Annotated[
        bool, typer.Option("--items", help="The holdout's items instead, failing ones first.")
    ] = False,
    suites: Annotated[
        bool, typer.Option("--suites", help="With --items: those of the suites, by the operator's key.")
    ] = False,
    log: Annotated[bool, typer.Option("--log", help="What the scoring process wrote instead.")] = False,
) -> None:
    """Show the gate's verdict with every number."""
    if log:
        written = api().get(f"/models/{name}/evaluation/log")
        show(written, written["text"] or "the scoring process wrote nothing")
    elif items:
        _show_items(name, of_suites=suites)
    else:
        _show_verdict(name)


def _show_items(name: str, *, of_suites: bool) -> None:
    path = f"/models/{name}/evaluation/items"
    if of_suites:
        path = f"/admin/evaluations/{api().get(f'/models/{name}/evaluation')['id']}/items"
    items = list((admin_api() if of_suites else api()).pages(path))
    columns = ("outcome", "check", "suite", "line", "prompt", "expected", "base_answer", "answer")
    rows = [[_short(item[column]) for column in columns] for item in items]
    show_table(items, columns, rows)


def _show_verdict(name: str) -> None:
    verdict = api().get(f"/models/{name}/evaluation")
    rows = [row for check in verdict["checks"] for row in _evaluation_rows(check)]
    columns = ("check", "outcome", "criterion", "metric", "value", "base", "threshold", "items")
    show_table([verdict], columns, rows)


@app.command(cls=Changes)
def evaluate(
    name: str,
    watch: Annotated[
        bool, typer.Option("--watch", help="Until its verdict; exit code 1 where it is no pass.")
    ] = False,
) -> None:
    """Run the gate once more, with the suites registered now. A version that fails is withdrawn."""
    verdict = api().post(f"/models/{name}/evaluate")
    if watch:
        verdict = _verdict(name, verdict["id"])
        if verdict["outcome"] != "passed":
            raise RefusedByPlatform(f"{verdict['id']} {verdict['outcome']}: {verdict['reason']}")
    show(verdict, f"{verdict['id']}: {verdict['outcome']}")


def _verdict(name: str, eval_id: str) -> dict[str, Any]:
    """The evaluation once it is over; one that somebody asked for since, where that is the newer one."""
    last = ""
    while True:
        newest: dict[str, Any] = api().get(f"/models/{name}/evaluation")
        if newest["outcome"] != "running":
            return newest
        line = how_far(newest["progress"]) if newest["progress"] else f"{eval_id} is running"
        if line != last:
            note(line)
        last = line
        time.sleep(POLL_SECONDS)


@app.command(cls=Changes)
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


@app.command(cls=Changes)
def archive(name: str) -> None:
    """Retire a version."""
    model = api().post(f"/models/{name}/archive")
    show(model, f"{model['id']}: {model['retune']['stage']}")


@app.command(cls=Changes)
def exports(
    name: str,
    file_format: Annotated[
        str | None,
        typer.Option("--format", help="safetensors or gguf: make it, where there is none. Without it: list."),
    ] = None,
    quantization: Annotated[
        str | None, typer.Option(help="Matrices of a GGUF file: f16 (as without it), q8_0 or q4_0.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="A folder: wait until the export is ready, and download its files there."),
    ] = None,
) -> None:
    """Export a version as files that run without the platform; without --format, list its exports."""
    if file_format is None:
        if quantization or out:
            raise typer.BadParameter("--quantization and --out need --format")
        _show_exports(name)
        return
    body = {"format": file_format} | ({"quantization": quantization} if quantization else {})
    export = api().post(f"/models/{name}/exports", body)
    if out is not None:
        export = _ready(name, export)
        _download(name, export, out)
    where = f" in {out}" if out else ""
    show(export, f"{export['id']}: {export['status']}{where}{_nearness(export['parity'])}")


@app.command("delete-export", cls=Changes)
def delete_export(name: str, export_id: str) -> None:
    """Delete the files of an export."""
    answer = api().delete(f"/models/{name}/exports/{export_id}")
    show(answer, f"{export_id} is deleted" if answer["deleted"] else f"{export_id} will be deleted")


def _show_exports(name: str) -> None:
    exported = list(api().pages(f"/models/{name}/exports"))
    rows = [
        (each["id"], each["format"], each["quantization"], each["status"], each["bytes"], _what_else(each))
        for each in exported
    ]
    show_table(exported, ("id", "format", "quantization", "status", "bytes", "parity"), rows)


def _what_else(export: dict[str, Any]) -> str:
    if export["status"] == "failed":
        return str(export["error"]["message"])
    return _nearness(export["parity"]).removeprefix("; ") or _how_far_export(export)


def _ready(name: str, export: dict[str, Any]) -> dict[str, Any]:
    """Follow the export until it is ready. Raises RefusedByPlatform where it fails."""
    last = ""
    while export["status"] == "running":
        if (line := f"{export['id']}: {_how_far_export(export)}") != last:
            note(line)
        last = line
        time.sleep(POLL_SECONDS)
        export = api().get(f"/models/{name}/exports/{export['id']}")
    if export["status"] == "failed":
        raise RefusedByPlatform(f"{export['id']}: {export['error']['message']}")
    return export


def _how_far_export(export: dict[str, Any]) -> str:
    progress = export["progress"]
    if progress is None:
        return "waiting"
    share = f" {progress['done'] / progress['total']:.0%}" if progress["total"] else ""
    left = f", {progress['seconds_left']:.0f} s left" if progress["seconds_left"] is not None else ""
    return f"{progress['activity']}{share}{left}"


def _download(name: str, export: dict[str, Any], out: Path) -> None:
    files = export["files"]
    require_plain_names(files)
    out.mkdir(parents=True, exist_ok=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=stderr) as progress:
        row = progress.add_task("downloading", total=export["bytes"])
        for file in files:
            progress.update(row, description=file["path"])
            fetch(
                api(),
                f"/models/{name}/exports/{export['id']}/files/{file['path']}",
                out / file["path"],
                size_bytes=file["size_bytes"],
                sha256=file["sha256"],
                advance=partial(progress.advance, row),
            )


def _nearness(parity: dict[str, Any] | None) -> str:
    if parity is None:
        return ""
    return (
        f"; divergence from the trained model {parity['mean_kl']:.2g} nats of at most {parity['kl_limit']:.2g},"
        f" {parity['equal_next_tokens']:.1%} equal next tokens"
    )


def _evaluation_rows(check: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """One row for each number, then one for each category of prompts that it was counted over."""
    nothing = dict.fromkeys(("name", "metric", "value", "baseline", "threshold", "count"))
    for criterion in check["criteria"] or [nothing]:
        yield (
            check["check"],
            criterion.get("outcome") or check["outcome"],
            criterion["name"],
            criterion["metric"],
            _round(criterion["value"]),
            _round(criterion["baseline"]),
            _round(criterion["threshold"]),
            criterion["count"],
        )
        for each in criterion.get("categories", ()):
            name = f"{criterion['name']}: {each['category'] or 'other'}"
            yield check["check"], None, name, "refused", each["refused"], None, None, each["count"]


def _holdout(model: dict[str, Any]) -> str:
    """Whether it was tested on rows of its own task; empty for base models and what did not pass."""
    word = {True: "yes", False: "none"}.get(model["retune"].get("has_holdout"), "")
    return "none, accepted" if model["retune"].get("accepted_without_holdout") else word


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


def _training_template(text: str) -> str | None:
    if text == AUTO:
        return None
    path = Path(text)
    if not path.is_file():
        raise typer.BadParameter(f"training-template: {text!r} is not a file, expected one or {AUTO}")
    try:
        template = path.read_text()
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"training-template: {text!r} is not UTF-8: {error}") from error
    if not 0 < len(template) <= MAX_TEMPLATE_CHARACTERS:
        raise typer.BadParameter(
            f"training-template: {text!r} has {len(template)} characters, "
            f"expected 1 to {MAX_TEMPLATE_CHARACTERS}"
        )
    return template


def _short(value: object) -> str:
    """Shorten a value to one line of a table; --json has it whole."""
    text = " ".join(str("" if value is None else value).split())
    return text if len(text) <= MAX_CELL else f"{text[: MAX_CELL - 1]}…"


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _print(value: object) -> None:
    show(value, json.dumps(value, indent=1, ensure_ascii=False))
