"""Runners with the real training child, alone and under torchrun: a gang of two nodes is stopped and continues exactly."""

import os
import signal
import textwrap
from pathlib import Path
from typing import Any

import psutil
import pytest

from schemas import layout
from schemas.artifacts import BundleManifest, DatasetManifest
from schemas.base import DatasetRef, FailureClass
from schemas.job import StopReason
from schemas.specification import CheckpointSpec, EarlyStoppingSpec, JobSpec
from schemas.training import (
    CheckpointWritten,
    StepReached,
    StepsRecorded,
    TrainingCompleted,
    TrainingFailed,
    TrainingResumed,
    TrainingStopped,
)
from shared.storage.objects import get_manifest, put_manifest
from tests.integration.attempts import Attempts
from tests.integration.nodes import attempts, nodes
from tests.stored import put_base
from tests.tiny_model import build_tiny_model
from tests.training.conftest import packed_windows
from tests.training.jobs import a_recipe, write_dataset

__all__ = ["attempts", "nodes"]

pytestmark = [pytest.mark.stack, pytest.mark.torch]

ONE_THREAD = {"RUNNER_OMP_NUM_THREADS": "1"}
TRAINING, TORCHRUN = "services.trainer_agent.training.main", "services.trainer_agent.training.launch"


@pytest.fixture(scope="module")
async def inputs(attempts: Attempts, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A tiny Llama and a packed dataset in S3, as fields of JobScheduled."""
    folder = tmp_path_factory.mktemp("inputs")
    text = Path(textwrap.__file__).read_text()
    base_dir = build_tiny_model(folder / "base", text=text)
    dataset_dir = write_dataset(folder / "dataset", packed_windows(base_dir, text))
    base_sha = await put_base(attempts.objects, base_dir)
    dataset = await put_dataset(attempts, dataset_dir, base_sha)
    # Each step is seven micro batches of each of two processes.
    every = CheckpointSpec(every_steps=10, every_seconds=3600)
    recipe = a_recipe(num_epochs=8, batch_size=28, checkpoint=every)
    spec = attempts.a_schedule().spec
    return {
        "base_sha": base_sha,
        "dataset": dataset,
        "spec": JobSpec(**spec.model_dump() | {"base_sha": base_sha, "recipe": recipe}),
    }


async def put_dataset(attempts: Attempts, folder: Path, base_sha: str) -> DatasetRef:
    manifest = DatasetManifest.model_validate_json((folder / layout.MANIFEST).read_bytes())
    manifest = manifest.model_copy(update={"base_sha": base_sha})
    for part in (*manifest.training, *manifest.validation):
        key = layout.dataset(manifest.version, part.path)
        await attempts.objects.put_file(key, folder / part.path, sha256=part.sha256)
    digest = await put_manifest(attempts.objects, layout.dataset(manifest.version), manifest)
    return DatasetRef(version=manifest.version, manifest_sha256=digest)


async def test_a_gang_of_two_nodes_is_stopped_within_a_step_and_continues_exactly(attempts, nodes, inputs):
    """From its second step on a micro batch takes two seconds, so that the stop finds it within that step."""
    first = await attempts.schedule(nodes=2, **inputs)
    await nodes.start_real(first, **ONE_THREAD, FAILPOINTS="trainer.microbatch.end=stall:2@8")
    await attempts.until(first.job_id, StepReached)
    for node in range(2):
        pids = nodes.child_pids(first, node)
        assert {address for pid in pids for address in listened_at(pid)} == {"127.0.0.1"}
    await attempts.stop(first, seconds=120, reason=StopReason.PREEMPT)
    stopped = await attempts.until(first.job_id, TrainingStopped)
    assert (stopped.reason, stopped.bundle.step, stopped.last_step) == ("preempt", 1, 1)
    for node in range(2):
        assert (await nodes.until_ended(first, node)).exit_code == 143

    second = await attempts.schedule(first.job_id, attempt=2, nodes=2, resume=stopped.bundle, **inputs)
    await nodes.start_real(second, **ONE_THREAD)
    done = await attempts.until(first.job_id, TrainingCompleted)
    certificate = (await attempts.until(first.job_id, TrainingResumed)).certificate
    assert (certificate.exact, certificate.reason, certificate.step) == (True, "equal", stopped.last_step)
    key = layout.checkpoint(first.job_id, done.bundle.attempt, done.bundle.step)
    manifest = await get_manifest(attempts.objects, key, BundleManifest, sha256=done.bundle.manifest_sha256)
    assert manifest.world_size == 2
    assert {"rng/rank-0.safetensors", "rng/rank-1.safetensors"} <= {part.path for part in manifest.parts}
    for node in range(2):
        assert (await nodes.until_ended(second, node)).exit_code == 0
    final = attempts.heard(first.job_id, CheckpointWritten)[-1]
    assert (final.bundle, final.metrics.keys()) == (
        done.bundle,
        {"train_loss", "valid_loss", "full_valid_loss", "perplexity"},
    )
    steps = [s.step for batch in attempts.heard(first.job_id, StepsRecorded) for s in batch.steps]
    assert steps == list(range(1, done.last_step + 1))


async def test_a_run_that_ends_early_names_the_best_checkpoint_of_an_earlier_attempt(attempts, nodes, inputs):
    """No loss falls by 100 nats, so that the first validation is the last improvement, whichever of the three is the lowest."""
    spec = inputs["spec"]
    recipe = spec.recipe.model_copy(
        update={
            "eval_every_steps": 10,
            "early_stopping": EarlyStoppingSpec(patience=2, min_delta=100.0),
            "load_best_model_at_end": True,
            "batch_size": 4,
            "learning_rate": 2e-2,
        }
    )
    asked = inputs | {"spec": spec.model_copy(update={"recipe": recipe})}
    first = await attempts.schedule(**asked)
    await nodes.start_real(first, **ONE_THREAD, FAILPOINTS="trainer.step.end=stall:60@22")
    await attempts.until(first.job_id, CheckpointWritten, times=2)
    os.kill(one_of(nodes.child_pids(first), TRAINING), signal.SIGKILL)
    await attempts.until(first.job_id, TrainingFailed)
    earlier, resume = (each.bundle for each in attempts.heard(first.job_id, CheckpointWritten))
    assert (earlier.step, resume.step) == (10, 20)

    second = await attempts.schedule(first.job_id, attempt=2, resume=resume, **asked)
    await nodes.start_real(second, **ONE_THREAD)
    done = await attempts.until(first.job_id, TrainingCompleted)
    assert (done.last_step, done.bundle.attempt) == (30, 2)
    assert done.message.startswith(
        "ended early at step 30 of 56: in 2 validations in a row the loss was not below"
    )
    validations = {
        each.step: each.metrics["full_valid_loss"]
        for batch in attempts.heard(first.job_id, StepsRecorded)
        for each in batch.validations
    }
    assert validations.keys() == {10, 20, 30}
    final = attempts.heard(first.job_id, CheckpointWritten)[-1]
    lowest = min(validations, key=validations.__getitem__)
    written = {each.bundle.step: each.bundle for each in attempts.heard(first.job_id, CheckpointWritten)}
    assert (final.bundle, final.best.bundle) == (done.bundle, written[lowest])
    assert final.best.valid_loss == validations[lowest]
    key = layout.checkpoint(first.job_id, done.bundle.attempt, done.bundle.step)
    manifest = await get_manifest(attempts.objects, key, BundleManifest, sha256=done.bundle.manifest_sha256)
    assert manifest.best == (None if lowest == 30 else written[lowest])


@pytest.mark.parametrize(("processes", "killed"), [(1, TRAINING), (2, TORCHRUN)])
async def test_a_killed_child_is_infrastructure_and_leaves_nothing(
    attempts, nodes, inputs, processes, killed
):
    scheduled = await attempts.schedule(devices_per_node=processes, **inputs)
    await nodes.start_real(scheduled, **ONE_THREAD)
    await attempts.until(scheduled.job_id, StepReached)
    os.kill(one_of(nodes.child_pids(scheduled), killed), signal.SIGKILL)
    failed = await attempts.until(scheduled.job_id, TrainingFailed)
    assert (failed.failure_class, failed.message) == (
        FailureClass.INFRA,
        f"node {failed.node_id}: the training child was ended by signal 9",
    )
    assert (await nodes.until_ended(scheduled)).exit_code == 143
    assert nodes.child_pids(scheduled) == []


def listened_at(pid: int) -> set[str]:
    """Addresses of this machine at which the process lets others connect."""
    connections = psutil.Process(pid).net_connections("tcp")
    return {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}


def one_of(pids: list[int], module: str) -> int:
    """The first process of that module; what launched it has another command line."""
    for pid in pids:
        command = Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
        if b"python" in command[0] and module.encode() in command[:4]:
            return pid
    raise AssertionError(f"no process of {module} among {pids}")
