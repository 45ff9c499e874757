"""What the guides print for HTTP runs as printed: the program of from-openai.md, and the request of first-job.md.

Only the gateway runs: what becomes of the job is published on the topics, with the guide's own numbers, and a stand-in
answers for the model. Nothing is trained, judged or served.
"""

import asyncio
import json
import os
import re
import shutil
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any

import openai
import pytest

from schemas.base import BundleRef
from schemas.checkpoint import CheckpointVerified
from schemas.evaluation import EvalFailed, EvalStarted
from schemas.job import JobSucceeded, SubmitJob
from schemas.specification import Method
from schemas.training import BundleKind, BundleMetrics, CheckpointWritten, StepsRecorded
from tests.builders import a_sha
from tests.documents import ROOT, blocks
from tests.integration.gateway.world import ROW, World, a_step, mark
from tests.waiting import until

pytestmark = pytest.mark.stack

GUIDE = "docs/guides/from-openai.md"
FIRST_JOB = "docs/guides/first-job.md"
BASE = "my-base"
OUTPUT = re.compile(
    r"succeeded (?P<model>\S+) (?P<tokens>\d+)\n(?P<message>the gate failed: (?P<reason>.*))\n"
    r"Metrics\(.*step=(?P<step>\d+)\.0, train_loss=(?P<loss>[\d.]+),.*\)\nfailed (?P=message)\n"
)


@pytest.fixture
async def my_base(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "base_name", BASE)
    if BASE not in [model["id"] for model in (await world.ask("GET", "/models")).json()["data"]]:
        await world.register_base()


async def start_program(world: World, folder: Path) -> Process:
    """Start the guide's blocks, one after the other, where its two files are."""
    for name in ("train", "holdout"):
        (folder / f"{name}.jsonl").write_bytes(ROW * 100)
    program = "\n".join(blocks(GUIDE, "python"))
    environment = os.environ | world.stack.operator_env()
    command = (sys.executable, "-c", program)
    return await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=environment, stdout=PIPE, stderr=PIPE
    )


async def submitted(world: World, program: Process) -> SubmitJob:
    async def job_id() -> str | None:
        if program.returncode is not None:
            raise AssertionError((await program.communicate())[1].decode())
        jobs = (await world.ask("GET", "/fine_tuning/jobs?limit=100")).json()["data"]
        return next((job["id"] for job in jobs if job["model"] == BASE), None)

    return (await world.heard(await until(job_id, "the guide's job"), "SubmitJob")).message


async def train(world: World, job_id: str, *, step: int, loss: float, tokens: int) -> None:
    """Publish a training that ended with this step, this loss and so many tokens in all."""
    await world.a_running_job(job_id=job_id)
    of_job = {"job_id": job_id, "tenant": "demo"}
    bundle = BundleRef(attempt=1, step=step, manifest_sha256=a_sha(f"{job_id} {step}"))
    metrics = BundleMetrics(train_loss=loss).by_name
    written = CheckpointWritten(**of_job, attempt=1, bundle=bundle, kind=BundleKind.FINAL, metrics=metrics)
    last = a_step(step).model_copy(update={"num_tokens": tokens - a_step(step).num_tokens})
    await world.voices.say("trainer_agent", written)
    await world.voices.say("checkpoint_watcher", CheckpointVerified(**of_job, bundle=bundle, size_bytes=10))
    await world.record(StepsRecorded(**of_job, attempt=1, steps=(last,)))
    query = """SELECT EXISTS (SELECT FROM checkpoint WHERE job_id = $1 AND step = $2 AND state = 'verified')
                  AND EXISTS (SELECT FROM job WHERE job_id = $1 AND trained_tokens = $3)"""
    await until(lambda: world.db.fetchval(query, job_id, step, tokens), "the last checkpoint and the tokens")


async def block(world: World, job_id: str, *, name: str, reason: str, message: str) -> None:
    """Publish that the gate failed and, once the gateway knows it, that the job is over."""
    of_model = {"model_id": f"mv-{job_id}", "job_id": job_id, "tenant": "demo", "digest": a_sha(job_id)}
    judged = of_model | {"eval_id": f"eval-{mark()}", "base_sha": world.base_sha}
    failed = EvalFailed(**judged, checks=(), reason=reason)
    await world.voices.say("evaluator", EvalStarted(**judged), failed)
    query = "SELECT true FROM evaluation WHERE eval_id = $1 AND outcome = 'failed'"
    await until(lambda: world.db.fetchval(query, failed.eval_id), "the verdict")
    succeeded = JobSucceeded(
        job_id=job_id, tenant="demo", fine_tuned_model=name, model_id=of_model["model_id"],
        promoted=False, deployed=False, message=message,
    )  # fmt: skip
    await world.voices.say("scheduler", succeeded)


@pytest.mark.usefixtures("my_base")
async def test_the_program_prints_what_the_guide_shows(world: World, tmp_path: Path):
    (shown,) = blocks(GUIDE, "")
    numbers: Any = OUTPUT.fullmatch(shown)
    assert numbers, f"{GUIDE} shows another output"
    program = await start_program(world, tmp_path)
    try:
        command = await submitted(world, program)
        loss, step, tokens = float(numbers["loss"]), int(numbers["step"]), int(numbers["tokens"])
        await train(world, command.job_id, step=step, loss=loss, tokens=tokens)
        outcome = {"name": numbers["model"], "reason": numbers["reason"], "message": numbers["message"]}
        await block(world, command.job_id, **outcome)
        output, errors = await program.communicate()
    finally:
        if program.returncode is None:
            program.kill()
    assert (output.decode(), errors.decode()) == (shown, "")
    spec = command.spec
    assert (spec.base_model, spec.suffix, spec.recipe.num_epochs) == (BASE, "ported", 1)
    assert (spec.recipe.method, spec.training_file.filename) == (Method.LORA, "train.jsonl")
    assert spec.holdout.filename == "holdout.jsonl"


@pytest.mark.usefixtures("my_base")
async def test_a_program_is_switched_over_by_the_two_variables(world: World, monkeypatch: pytest.MonkeyPatch):
    names = re.search(
        r"set `(\w+)` and `(\w+)` to the values of `(\w+)` and `(\w+)`", (ROOT / GUIDE).read_text()
    )
    assert names, f"{GUIDE} does not say how a program is switched over"
    values = world.stack.operator_env()
    for theirs, ours in zip(names.groups()[:2], names.groups()[2:], strict=True):
        monkeypatch.setenv(theirs, values[ours])
    async with openai.AsyncOpenAI() as client:
        assert BASE in [model.id async for model in client.models.list()]


@pytest.mark.skipif(shutil.which("curl") is None, reason="the guide's request is one of curl")
async def test_the_request_of_the_first_job_is_answered_by_the_model_that_it_names(world: World, replica):
    (request,) = [text for text in blocks(FIRST_JOB, "") if text.startswith("curl ")]
    name = re.search(r'"model": "([^"]+)"', request)
    assert name, f"{FIRST_JOB} asks no model"
    standing_in = await replica()
    await world.serve(await world.a_version(full_name=name[1]), standing_in)
    environment = os.environ | world.stack.operator_env()
    shell = await asyncio.create_subprocess_shell(request, env=environment, stdout=PIPE, stderr=PIPE)
    answer, errors = await shell.communicate()
    assert shell.returncode == 0, errors.decode()
    assert json.loads(answer)["model"] == name[1]
    (body,) = standing_in.asked
    assert [message["role"] for message in body["messages"]] == ["user"]
