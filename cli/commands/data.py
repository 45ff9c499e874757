"""retune data: files, datasets, benchmarks and safety suites."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from cli import kafka_commands
from cli.api import Api
from cli.changes import Changes, is_dry
from cli.commands.context import admin_api, api, connection, upload_rows
from cli.commands.excerpts import excerpts_text
from cli.output import note, show, show_table, stderr
from cli.row_files import uploadable
from ops.errors import RefusedByPlatform, Unreachable
from schemas.base import FileRef
from schemas.evaluation import (
    BenchmarkKind,
    BenchmarkRegistered,
    RegisterBenchmark,
    RegisterSafetySuite,
    SafetySuiteRegistered,
)
from schemas.excerpts import DatasetExcerpts
from shared.row_files import MAX_GATE_BYTES

app = typer.Typer(
    add_completion=False, help="Files, datasets, benchmarks and safety suites.", no_args_is_help=True
)

POLL_SECONDS = 0.5
REGISTER_SECONDS = 120.0
LISTED_SECONDS = 30.0


@app.command(cls=Changes)
def upload(path: Path, purpose: str = "fine-tune") -> None:
    """Upload a file of rows: JSON lines, those in gzip, or Parquet."""
    file = upload_rows(path, purpose=purpose)
    show(file, file["id"])


@app.command("list")
def list_files(purpose: str | None = None) -> None:
    """List uploaded files."""
    files = list(api().pages("/files", purpose=purpose))
    rows = [(f["id"], f["filename"], f["bytes"], f["purpose"], f["retune"]["format"]) for f in files]
    show_table(files, ("id", "name", "bytes", "purpose", "format"), rows)


@app.command(cls=Changes)
def validate(
    path: Path,
    model: Annotated[str, typer.Option(help="Base model whose tokenizer and template count.")],
    holdout: Annotated[Path | None, typer.Option(help="Task holdout.")] = None,
) -> None:
    """Run every check on a dataset without starting a job."""
    body: dict[str, Any] = {
        "model": model,
        "training_file": upload_rows(path, is_used=True)["id"],
    }
    if holdout is not None:
        body["retune"] = {"holdout_file": upload_rows(holdout, is_used=True)["id"]}
    dataset = api().post("/datasets", body)
    with stderr.status("validating"):
        while dataset["status"] == "validating":
            time.sleep(POLL_SECONDS)
            dataset = api().get(f"/datasets/{dataset['id']}")
    if dataset["status"] != "ready":
        raise RefusedByPlatform(_rejection(dataset))
    show(dataset, f"{dataset['id']} ready, version {dataset['version']}, {json.dumps(dataset['counts'])}")


def _rejection(dataset: Mapping[str, Any]) -> str:
    """Why, and a line for each bad row that the event names."""
    rows = [
        f"{row['file']} file, line {row['line']}, {row['field']}: {row['rule']}, found {row['found']}: {row['fix']}"
        for row in dataset.get("problems", ())
    ]
    return "\n".join([f"{dataset.get('code')}: {dataset.get('message')}", *rows])


@app.command()
def report(dataset_id: str) -> None:
    """Print the report of a dataset."""
    dataset_report = api().get(f"/datasets/{dataset_id}/report")
    show(dataset_report, json.dumps(dataset_report, indent=1, ensure_ascii=False))


@app.command()
def excerpts(dataset_id: str) -> None:
    """Print duplicates side by side, contaminated rows beside their items, and how rows are packed."""
    shown = api().get(f"/datasets/{dataset_id}/excerpts")
    show(shown, excerpts_text(DatasetExcerpts.model_validate(shown)))


@app.command()
def suites() -> None:
    """List the benchmarks and safety suites that every gate asks."""
    all_suites = list(api().pages("/suites"))
    rows = [(s["name"], s["check"], s["rows"], s["digest"][:12]) for s in all_suites]
    show_table(all_suites, ("name", "check", "rows", "digest"), rows)


@app.command("register-benchmark", cls=Changes)
def register_benchmark(
    name: str,
    path: Path,
    kind: Annotated[
        BenchmarkKind,
        typer.Option("--kind", "--task", help="Shape of the rows, or the published task that they are of."),
    ] = BenchmarkKind.MULTIPLE_CHOICE,
    num_fewshot: Annotated[int, typer.Option(min=0, max=25, help="Examples in front of a question.")] = 0,
    fewshot: Annotated[
        Path | None,
        typer.Option(
            help="File of the rows that examples are taken from: the task's own train or dev split."
        ),
    ] = None,
    margin_points: Annotated[
        float | None,
        typer.Option(help="Fall that the gate tolerates, in points of 100; for suites under 1,000 items."),
    ] = None,
) -> None:
    """Register a benchmark that every gate runs from now on. It replaces the earlier one of its name.

    Files are JSON lines, JSON lines in gzip, or Parquet.
    """
    if fewshot is not None and num_fewshot == 0:
        raise typer.BadParameter("--fewshot names where examples come from, expected --num-fewshot with it")
    command = RegisterBenchmark(
        name=name,
        kind=kind,
        file=_blob(path, "benchmark"),
        num_fewshot=num_fewshot,
        examples=_blob(fewshot, "benchmark") if fewshot is not None else None,
        margin_points=margin_points,
    )
    fact = kafka_commands.command(
        connection(), command, until=[BenchmarkRegistered], seconds=REGISTER_SECONDS
    )
    assert isinstance(fact, BenchmarkRegistered)
    wait_until_listed(api(), fact)
    show(fact.model_dump(mode="json"), f"{fact.name}: {fact.rows} rows, digest {fact.digest}")


@app.command("register-safety-suite", cls=Changes)
def register_safety_suite(
    name: str,
    path: Path,
    benign: Annotated[
        bool, typer.Option("--benign", help="The prompts are harmless: a model that refuses them fails.")
    ] = False,
) -> None:
    """Register prompts that every gate asks from now on. They replace the earlier suite of the name.

    A model has to refuse them; with --benign it has to answer them.
    """
    command = RegisterSafetySuite(
        name=name, file=_blob(path, "safety-suite"), expects="answer" if benign else "refusal"
    )
    fact = kafka_commands.command(
        connection(), command, until=[SafetySuiteRegistered], seconds=REGISTER_SECONDS
    )
    assert isinstance(fact, SafetySuiteRegistered)
    wait_until_listed(api(), fact)
    show(fact.model_dump(mode="json"), f"{fact.name}: {fact.rows} prompts, digest {fact.digest}")


def wait_until_listed(platform: Api, fact: BenchmarkRegistered | SafetySuiteRegistered) -> None:
    """Until the gateway has heard of the suite, so that a job submitted now is not refused for want of it.

    Raises Unreachable.
    """
    deadline = time.monotonic() + LISTED_SECONDS
    while not any(
        (suite["name"], suite["digest"]) == (fact.name, fact.digest) for suite in platform.pages("/suites")
    ):
        if time.monotonic() > deadline:
            raise Unreachable(
                f"{fact.name} is registered, and the gateway has not heard of it; see `retune status`"
            )
        time.sleep(POLL_SECONDS)


def _blob(path: Path, purpose: str) -> FileRef:
    with uploadable(path, at_most_bytes=MAX_GATE_BYTES) as lines:
        file = admin_api().upload(lines, purpose=purpose, is_used=True)
    if not is_dry():
        note(f"uploaded {path.name} as {file['id']}")
    return FileRef(
        file_id=file["id"],
        sha256=file["retune"]["sha256"],
        size_bytes=file["bytes"],
        filename=file["filename"],
    )
