"""retune jobs: submit, watch, stop."""

import itertools
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.changes import Changes
from cli.commands.bar import Bar
from cli.commands.base_models import described_estimate, described_model, described_time
from cli.commands.compare import compared, num_equal, why_not_comparable
from cli.commands.context import DryRun, api, upload_rows
from cli.commands.numbers import written
from cli.commands.sparkline import sparkline
from cli.commands.times import shown_time
from cli.commands.watch import details, ending, in_short, is_over, line, mark, place, stage, state_of
from cli.output import legible, note, show, show_table, stderr, write
from ops.errors import RefusedByPlatform
from schemas.lifecycle import TERMINAL
from schemas.training import REWARDS, ROUTING, USE

app = typer.Typer(add_completion=False, help="Fine-tuning jobs.", no_args_is_help=True)

JOBS = "/fine_tuning/jobs"
POLL_SECONDS = 0.5
STEPS_OF_CURVE = 1_000
"""Steps whose losses are drawn, the newest ones."""
VERDICT_SECONDS = 10.0
"""How long the verdict of an ended job is waited for: it is on its way on another topic."""


@app.command()
def submit(
    training_file: Annotated[str, typer.Argument(help="A path, or the id of an uploaded file.")],
    model: Annotated[str, typer.Option(help="Base model, or what to start from: ft:… or ftckpt-….")],
    suffix: str | None = None,
    validation_file: str | None = None,
    holdout: Annotated[str | None, typer.Option(help="Task holdout: a path or a file id.")] = None,
    safety_mix: Annotated[str | None, typer.Option(help="Alignment rows: a path or a file id.")] = None,
    options: Annotated[
        str,
        typer.Option(
            help='JSON for `retune`: {"recipe": …, "resources": …, "gate": …, "policy": …, "later_stages": [{"recipe"'
            ': …, "training_file": …}, …]}'
        ),
    ] = "{}",
    allow_ungated: Annotated[
        bool, typer.Option("--allow-ungated", help="Train although the gate cannot pass for want of suites.")
    ] = False,
    max_cost: Annotated[
        str | None,
        typer.Option(
            metavar="USD", help="Most that it may cost: before that it ends, and what it has trained is kept."
        ),
    ] = None,
    watch: Annotated[bool, typer.Option(help="Show progress until the job ends.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Submit a job."""
    extensions = _options(options) | ({"allow_ungated": True} if allow_ungated else {})
    if max_cost is not None:
        extensions["max_cost"] = max_cost
    if holdout:
        extensions["holdout_file"] = _file_id(holdout)
    if safety_mix:
        extensions["safety_mix"] = {"file": _file_id(safety_mix)} | extensions.get("safety_mix", {})
    for each in extensions.get("later_stages", ()):
        _upload_files_of(each)
    body = {"model": model, "training_file": _file_id(training_file), "suffix": suffix, "retune": extensions}
    if validation_file:
        body["validation_file"] = _file_id(validation_file)
    job = api().post(f"{JOBS}?dry_run=true" if dry_run else JOBS, body)
    note(described_model(model, job["retune"]["base_model"]))
    if estimate := job["retune"]["estimated_memory"]:
        note(described_estimate(estimate))
    for each in job["retune"]["estimated_times"]:
        note(described_time(each))
    for warning in job["retune"]["warnings"]:
        note(f"warning: {warning['message']}")
    if dry_run:
        show(job, "nothing was submitted: it can be")
    elif watch:
        note(job["id"])
        _watch(job["id"])
    else:
        show(job, job["id"])


@app.command("list")
def list_jobs(
    limit: Annotated[int, typer.Option(min=1, help="The newest so many.")] = 50,
) -> None:
    """List jobs, newest first."""
    jobs = list(itertools.islice(api().pages(JOBS), limit))
    rows = [
        (
            j["id"],
            shown_time(j["created_at"]),
            _state_and_place(j),
            j["retune"]["gate"]["status"],
            j["model"],
            j["fine_tuned_model"],
            j["retune"]["cost_usd"],
        )
        for j in jobs
    ]
    show_table(jobs, ("id", "created", "state", "gate", "model", "fine-tuned model", "cost USD"), rows)
    if len(jobs) == limit:
        note(f"the newest {limit}; `--limit` takes another number")


def _state_and_place(job: dict[str, Any]) -> str:
    return ", ".join(filter(None, (str(job["retune"]["state"]), stage(job), place(job))))


@app.command("show")
def show_job(job_id: str) -> None:
    """Show all that is known of a job."""
    job = api().get(f"{JOBS}/{job_id}")
    show(job, json.dumps(job, indent=1, ensure_ascii=False))


@app.command()
def watch(job_id: str) -> None:
    """Follow a job until it ends, with its gate; exit code 1 where there is no usable model.

    A bar on a terminal, elsewhere a line for each change.
    """
    _watch(job_id)


@app.command(cls=Changes)
def cancel(job_id: str) -> None:
    """Stop a job after its next checkpoint; its newest adapter is kept."""
    _act(job_id, "cancel")


@app.command(cls=Changes)
def pause(job_id: str) -> None:
    """Stop a job after its next checkpoint, to be resumed."""
    _act(job_id, "pause")


@app.command(cls=Changes)
def resume(job_id: str) -> None:
    """Continue a paused job from its newest verified checkpoint."""
    _act(job_id, "resume")


@app.command(cls=Changes)
def retry(
    job_id: str,
    from_checkpoint: Annotated[
        bool, typer.Option("--continue", help="From the job's newest verified checkpoint, where it left off.")
    ] = False,
) -> None:
    """Make a new job like a failed or cancelled one."""
    query = "?from_checkpoint=true" if from_checkpoint else ""
    job = api().post(f"{JOBS}/{job_id}/retry{query}")
    show(job, job["id"])


@app.command()
def events(job_id: str) -> None:
    """Print what happened to a job, oldest first; `metrics` has the numbers."""
    job_events = list(api().pages(f"{JOBS}/{job_id}/events"))[::-1]
    rows = [
        (time.strftime("%H:%M:%S", time.localtime(e["created_at"])), e["level"], e["message"])
        for e in job_events
        if e["type"] != "metrics"
    ]
    show_table(job_events, ("time", "level", "message"), rows)


@app.command()
def checkpoints(job_id: str) -> None:
    """List the verified checkpoints of a job, newest first, and which is the best where the recipe asks for it."""
    job_checkpoints = list(api().pages(f"{JOBS}/{job_id}/checkpoints"))
    optional = ("served_valid_loss", "perplexity", "reward_margin", "reward_accuracy")
    names = ["train_loss", "valid_loss", "full_valid_loss"]
    names += [name for name in optional if any(c["metrics"].get(name) is not None for c in job_checkpoints)]
    rows = [
        (
            c["retune"]["attempt"],
            c["step_number"],
            f"{c['retune']['kind']}{', best' if c['retune']['is_best'] else ''}",
            *(written(name, c["metrics"].get(name)) for name in names),
        )
        for c in job_checkpoints
    ]
    show_table(job_checkpoints, ("attempt", "step", "kind", *names), rows)


@app.command()
def compare(
    job_ids: Annotated[
        list[str], typer.Argument(metavar="JOB_ID JOB_ID…", help="The first is the baseline.")
    ],
) -> None:
    """Show jobs beside each other: what they came to, and the settings that differ."""
    if len(job_ids) < 2:
        raise typer.BadParameter(f"found {len(job_ids)} job, expected two at least")
    jobs = [api().get(f"{JOBS}/{job_id}") for job_id in job_ids]
    checkpoints = [
        next(iter(api().get(f"{JOBS}/{each}/checkpoints", limit=1)["data"]), None) for each in job_ids
    ]
    show_table(jobs, ("", *job_ids), compared(jobs, checkpoints))
    if warning := why_not_comparable(jobs):
        note(f"warning: {warning}")
    note(f"{num_equal(jobs)} settings are equal in all")


@app.command()
def metrics(job_id: str) -> None:
    """Print the metrics of every step."""
    steps, after = [], 0
    while page := api().get(f"{JOBS}/{job_id}/metrics", after_step=after, limit=1000)["data"]:
        steps += page
        after = page[-1]["step"]
    optional = ("memory_bytes", *USE, "full_valid_loss", "perplexity", *REWARDS, *ROUTING)
    names = ["step", "attempt", "loss", "learning_rate", "grad_norm", "tokens_per_second"]
    names += [name for name in optional if any(step.get(name) is not None for step in steps)]
    show_table(steps, names, [[written(name, step.get(name)) for name in names] for step in steps])


@app.command()
def logs(
    job_id: str,
    attempt: int | None = None,
    node: int = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until the job ends.")] = False,
) -> None:
    """Print the log of an attempt's node."""
    after = -1
    while True:
        is_over = api().get(f"{JOBS}/{job_id}")["retune"]["state"] in TERMINAL
        page = api().get(f"{JOBS}/{job_id}/logs", attempt=attempt, node=node, after=after)
        # A bar that a library draws goes back to the line's beginning; here each of its states is a line.
        write(page["text"].replace("\r\n", "\n").replace("\r", "\n"), end="")
        if page["next"] == after:
            if is_over or not follow:
                return
            time.sleep(POLL_SECONDS)
        after = page["next"]


def _watch(job_id: str) -> None:
    """Raises RefusedByPlatform where there is no usable model in the end."""
    job = (_draw if stderr.is_terminal else _print_changes)(_states(job_id))
    if not job["retune"]["is_usable"]:
        raise RefusedByPlatform(ending(job))
    show(job, ending(job))


def _states(job_id: str) -> Iterator[dict[str, Any]]:
    """The job again and again, until it is over; the last one may still lack a verdict that nobody has heard."""
    polls_left = VERDICT_SECONDS / POLL_SECONDS
    while True:
        job: dict[str, Any] = api().get(f"{JOBS}/{job_id}")
        yield job
        polls_left -= job["retune"]["state"] in TERMINAL
        if is_over(job) or polls_left <= 0:
            return
        time.sleep(POLL_SECONDS)


def _draw(states: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """A bar that goes as the job goes; the job's last state."""
    losses: dict[int, float] = {}
    with Bar(stderr) as bar:
        for job in states:
            _add_losses(losses, job)
            progress = job["retune"]["progress"] or {"done": 0, "total": None}
            curve = (
                sparkline([losses[step] for step in sorted(losses)]) if job["retune"]["newest_step"] else ""
            )
            below = "\n".join(filter(None, (curve, details(job))))
            words = [legible(text) for text in (state_of(job), in_short(job), below)]
            bar.show(*words, done=progress["done"], total=progress["total"] or None)
    return job


def _add_losses(losses: dict[int, float], job: dict[str, Any]) -> None:
    """Bring the losses up to the job's newest step; those of steps that a resume takes again are dropped."""
    newest = job["retune"]["newest_step"]
    if newest is None:
        return
    for step in [each for each in losses if each > newest["step"]]:
        del losses[step]
    if newest["step"] in losses:
        return
    after = max(max(losses, default=0), newest["step"] - STEPS_OF_CURVE)
    page = api().get(f"{JOBS}/{job['id']}/metrics", after_step=after, limit=STEPS_OF_CURVE)["data"]
    losses |= {step["step"]: step["loss"] for step in page}


def _print_changes(states: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """A line for each change, where no terminal shows a bar; the job's last state."""
    last = None
    for job in states:
        if mark(job) != last:
            last = mark(job)
            note(line(job))
    return job


def _act(job_id: str, action: str) -> None:
    job = api().post(f"{JOBS}/{job_id}/{action}")
    show(job, f"{job_id}: {job['retune']['state']}")


def _file_id(path_or_id: str) -> str:
    if path_or_id.startswith("file-"):
        return path_or_id
    file_id: str = upload_rows(Path(path_or_id))["id"]
    return file_id


def _upload_files_of(options: dict[str, Any]) -> None:
    """Upload the files that a stage's `options` name by path, and put their ids in the place of the paths."""
    mix = options.get("safety_mix")
    for holder, name in ((options, "training_file"), (options, "validation_file"), (mix, "file")):
        if holder and holder.get(name):
            holder[name] = _file_id(holder[name])


def _options(text: str) -> dict[str, Any]:
    try:
        options = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"--options: not JSON: {error}") from error
    if not isinstance(options, dict):
        raise typer.BadParameter(f"--options: found {type(options).__name__}, expected a JSON object")
    return options
