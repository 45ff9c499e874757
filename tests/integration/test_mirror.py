"""Jobs are runs of a real MLflow server: each step once, whatever is killed, away or deleted."""

from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from deploy.local.stack import Stack
from schemas.base import CapacityType, TrialOf
from schemas.node import AllocatedNode, NodesProvisioned
from schemas.sweep import SubmitSweep
from services.tracker.decide.trial import job_id_of
from tests.builders import NOON, TENANT, a_dataset_ref
from tests.integration.kills import alive, killed_at
from tests.integration.mlflow_server import MlflowServer
from tests.integration.tracker_world import db
from tests.integration.voices import Voices, voices
from tests.unit.tracker.mirror_world import (
    evaluating,
    not_passed,
    passed,
    promoted,
    recorded,
    registered,
    requeued,
    scheduled,
    succeeded,
    written,
)
from tests.unit.tracker.sweep_world import a_sweep_spec, cancelled
from tests.waiting import until

__all__ = ["db"]

pytestmark = pytest.mark.stack

EXPERIMENT = f"trained/{TENANT}"


@pytest.fixture(scope="module")
async def mlflow(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MlflowServer]:
    server = MlflowServer(tmp_path_factory.mktemp("mlflow"))
    await server.start()
    yield server
    await server.stop()


@pytest.fixture(scope="module")
def env(mlflow: MlflowServer) -> dict[str, str]:
    return {"TRACKER_MLFLOW_URL": mlflow.url, "TRACKER_MLFLOW_EXPERIMENT_PREFIX": "trained/"}


@pytest.fixture(scope="module")
async def tracker(stack: Stack, env: dict[str, str]) -> AsyncIterator[Stack]:
    await alive(stack, "tracker", env=env)
    yield stack
    await stack.stop("tracker")


@pytest.fixture(scope="module")
async def voice(tracker: Stack) -> AsyncIterator[Voices]:
    async with voices(tracker) as voice:
        yield voice


@pytest.fixture
def job_id() -> str:
    return f"ftjob-{uuid4().hex[:8]}"


def provisioned(job_id: str, attempt: int) -> NodesProvisioned:
    node = AllocatedNode(node_id=f"n-{attempt}", index=0, price_per_hour=Decimal(1), allocated_at=NOON)
    return NodesProvisioned(
        job_id=job_id,
        tenant=TENANT,
        attempt=attempt,
        pool="cpu-spot",
        capacity_type=CapacityType.SPOT,
        nodes=(node,),
    )


async def begin(voice: Voices, job_id: str, *, attempt: int = 1, resumed_at: int | None = None) -> None:
    await voice.say("scheduler", scheduled(job_id, attempt=attempt, resumed_at=resumed_at))
    await voice.say("provisioner", provisioned(job_id, attempt))


async def run_of(
    mlflow: MlflowServer, subject_id: str, *, until_step: int = -1, status: str = ""
) -> dict[str, Any]:
    """Wait for the one run of the job or sweep, until it has the loss of this step and this status, which is sent last."""

    async def is_there() -> dict[str, Any] | None:
        runs = await mlflow.runs(EXPERIMENT, subject_id)
        assert len(runs) < 2, runs
        if not runs or status not in ("", runs[0]["info"]["status"]):
            return None
        steps = [step for step, _ in await losses(mlflow, runs[0])]
        return runs[0] if max(steps, default=-1) >= until_step else None

    return dict(
        await until(is_there, f"the run of {subject_id} with step {until_step} and status {status!r}")
    )


def tags_of(run: dict[str, Any]) -> dict[str, str]:
    return {each["key"]: each["value"] for each in run["data"]["tags"]}


async def losses(mlflow: MlflowServer, run: dict[str, Any]) -> list[tuple[int, float]]:
    return await mlflow.history(run["info"]["run_id"], "loss")


async def until_queued(db: asyncpg.Connection, job_id: str, last_step: int) -> None:
    async def is_queued() -> bool:
        query = "SELECT last_step FROM tracker.mirrored_run WHERE subject_id = $1"
        return await db.fetchval(query, job_id) == last_step

    await until(is_queued, f"step {last_step} of {job_id} queued")


async def test_a_job_that_was_preempted_is_one_run_with_all_that_came_of_it(
    voice: Voices, mlflow: MlflowServer, job_id: str
):
    await begin(voice, job_id)
    await voice.say("runner", recorded(range(1, 31), job_id, validated=[10, 20]))
    await voice.say("trainer_agent", written(20, job_id, valid_loss=2.5, full_valid_loss=2.0))
    await run_of(mlflow, job_id, until_step=30)
    await voice.say("scheduler", requeued(job_id))
    await begin(voice, job_id, attempt=2, resumed_at=20)
    await voice.say("runner", recorded(range(21, 51), job_id, attempt=2))
    await run_of(mlflow, job_id, until_step=50)
    await voice.say("scheduler", evaluating(job_id))
    await voice.say("evaluator", not_passed(job_id), passed(job_id, number=2))
    await voice.say("registry", registered(job_id), promoted(job_id))

    async def is_promoted() -> bool:
        (run,) = await mlflow.runs(EXPERIMENT, job_id)
        tags = tags_of(run)
        return (tags.get("retune.model_stage"), tags.get("retune.gate")) == ("staging", "passed")

    await until(is_promoted, "stage and verdict in the run")
    await voice.say("scheduler", succeeded(job_id))

    run = await run_of(mlflow, job_id, status="FINISHED")
    assert (run["info"]["run_name"], tags_of(run)["retune.state"]) == (job_id, "succeeded")
    assert run["info"]["end_time"] >= run["info"]["start_time"]
    expected = [(step, (1 if step <= 30 else 2) + step / 100) for step in range(1, 51)]
    assert await losses(mlflow, run) == expected
    run_id = run["info"]["run_id"]
    assert await mlflow.history(run_id, "full_valid_loss") == [(10, 1.0), (20, 2.0)]
    assert await mlflow.history(run_id, "valid_loss") == [(20, 2.5)]
    assert await mlflow.history(run_id, "retune.gate.held out rows.loss") == [(1, 1.25), (2, 1.25)]
    parameters = {each["key"]: each["value"] for each in run["data"]["params"]}
    assert (parameters["learning_rate"], parameters["lora.rank"]) == ("0.0003", "4")
    tags = tags_of(run)
    assert (tags["retune.attempt"], tags["retune.resumed_at_step"]) == ("2", "20")
    assert tags["retune.model"] == f"ft:tiny:{TENANT}::abc"
    (dataset,) = run["inputs"]["dataset_inputs"]
    assert a_dataset_ref().version.startswith(dataset["dataset"]["digest"])


async def test_what_happens_while_mlflow_is_away_is_logged_when_it_is_back(
    voice: Voices, mlflow: MlflowServer, db: asyncpg.Connection, job_id: str
):
    await begin(voice, job_id)
    await voice.say("runner", recorded(range(1, 11), job_id))
    await run_of(mlflow, job_id, until_step=10)
    await mlflow.stop()
    later = f"{job_id}-later"
    await begin(voice, later)
    for first in range(11, 200, 10):
        await voice.say("runner", recorded(range(first, first + 10), job_id))
    await voice.say("runner", recorded(range(1, 6), later))
    await voice.say("scheduler", succeeded(job_id))
    await until_queued(db, job_id, 200)
    await until_queued(db, later, 5)
    await mlflow.start()
    run = await run_of(mlflow, job_id, until_step=200, status="FINISHED")
    assert [step for step, _ in await losses(mlflow, run)] == list(range(1, 201))
    await run_of(mlflow, later, until_step=5)


async def test_what_was_logged_before_a_kill_is_not_logged_twice(
    tracker: Stack, voice: Voices, mlflow: MlflowServer, env: dict[str, str], job_id: str
):
    async with killed_at(tracker, "tracker", "mirror.logged", env=env):
        await begin(voice, job_id)
        await voice.say("runner", recorded(range(1, 31), job_id))
    await alive(tracker, "tracker", env=env)
    await voice.say("runner", recorded(range(31, 41), job_id))
    run = await run_of(mlflow, job_id, until_step=40)
    assert [step for step, _ in await losses(mlflow, run)] == list(range(1, 41))


async def test_a_run_that_somebody_deleted_holds_up_no_other(
    voice: Voices, mlflow: MlflowServer, db: asyncpg.Connection, job_id: str
):
    await begin(voice, job_id)
    await voice.say("runner", recorded([1], job_id))
    run = await run_of(mlflow, job_id, until_step=1)
    await mlflow.post("runs/delete", {"run_id": run["info"]["run_id"]})
    await voice.say("runner", recorded([2], job_id))

    async def is_noted() -> str:
        return await db.fetchval("SELECT problem FROM tracker.mirrored_run WHERE subject_id = $1", job_id)

    assert "must be in the 'active' state" in await until(is_noted, "the refusal noted")
    other = f"{job_id}-other"
    await begin(voice, other)
    await voice.say("runner", recorded([1], other))
    await run_of(mlflow, other, until_step=1)
    await mlflow.post("runs/restore", {"run_id": run["info"]["run_id"]})
    await run_of(mlflow, job_id, until_step=2)


async def test_a_sweep_is_the_parent_of_its_trials(voice: Voices, mlflow: MlflowServer, job_id: str):
    sweep_id = job_id.replace("ftjob", "sweep")
    spec = a_sweep_spec(num_trials=1, concurrency=1)
    await voice.say("gateway", SubmitSweep(sweep_id=sweep_id, tenant=TENANT, dataset_id="ds-1", spec=spec))
    trial = job_id_of(sweep_id, 0)
    await voice.say("scheduler", scheduled(trial, trial=TrialOf(sweep_id=sweep_id, number=0)))
    await voice.say("provisioner", provisioned(trial, 1))
    await voice.say("runner", recorded([1, 2], trial))
    child = await run_of(mlflow, trial, until_step=2)

    async def parameters() -> set[str]:
        """Empty until its own entries are logged: a trial may have made the run."""
        runs = await mlflow.runs(EXPERIMENT, sweep_id)
        return {each["key"] for run in runs for each in run["data"].get("params", [])}

    assert await until(parameters, "what the sweep searches") >= {"algorithm", "num_trials", "base_model"}
    parent = await run_of(mlflow, sweep_id, status="RUNNING")
    assert tags_of(child)["mlflow.parentRunId"] == parent["info"]["run_id"]
    await voice.say("scheduler", cancelled(trial))
    over = await run_of(mlflow, sweep_id, status="FAILED")
    assert tags_of(over)["retune.sweep"] == "all trials have ended; none was trained to its end"
