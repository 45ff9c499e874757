"""A job's `model` may be what an earlier one trained: a version or a checkpoint, of the same tenant and base model."""

import asyncio
from typing import Any

import pytest

from schemas.base import BundleRef, StartFrom
from schemas.checkpoint import CheckpointExpired
from schemas.evaluation import EvalFailed
from schemas.job import JobCancelled, JobSucceeded, SubmitJob
from schemas.model import ModelArchived
from tests.builders import a_sha
from tests.integration.gateway.test_commands import a_file, shown
from tests.integration.gateway.world import World, mark
from tests.waiting import until

pytestmark = pytest.mark.stack


async def submit(world: World, model: str, *, tenant: str = "demo", **recipe: Any) -> Any:
    uploaded = await world.upload(tenant)
    body = {"model": model, "training_file": uploaded["id"], "retune": {"recipe": recipe}}
    return await world.ask("POST", "/fine_tuning/jobs", tenant=tenant, json=body)


def error_of(answer: Any) -> tuple[int, str, str]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


def checkpoint_of(job_id: str) -> StartFrom:
    """As World.a_running_job has it."""
    bundle = BundleRef(attempt=1, step=10, manifest_sha256=a_sha(job_id))
    return StartFrom(name=f"ftckpt-{job_id}-1-10", job_id=job_id, bundle=bundle)


async def expire(world: World, start: StartFrom) -> None:
    fact = CheckpointExpired(job_id=start.job_id, tenant="demo", bundle=start.bundle)
    await world.voices.say("checkpoint_watcher", fact)
    query = "SELECT state = 'expired' FROM checkpoint WHERE job_id = $1"
    await until(lambda: world.db.fetchval(query, start.job_id), "the end of the checkpoint")


async def test_a_version_or_a_checkpoint_is_named_as_the_api_names_it(world):
    job_id = await world.a_running_job()
    version = await world.a_version(job_id=job_id)
    of_version = {"job_id": job_id, "bundle": version.bundle, "digest": version.digest}
    starts = [
        StartFrom(name=version.full_name, **of_version),
        StartFrom(name=f"{version.full_name}@{version.digest}", **of_version),
        StartFrom(name=version.model_id, **of_version),
        checkpoint_of(job_id),
    ]
    for start in starts:
        job = (await submit(world, start.name)).json()
        assert (job["model"], job["retune"]["start_from"]) == (start.name, start.model_dump(mode="json"))
        spec = (await world.heard(job["id"], "SubmitJob")).message.spec
        assert (spec.start_from, spec.base_model) == (start, world.base_name)


async def test_a_version_names_its_parent(world):
    start = checkpoint_of("ftjob-1")
    version = await world.a_version(started_from=start)
    shown_model = (await world.ask("GET", f"/models/{version.model_id}")).json()
    assert (shown_model["root"], shown_model["parent"]) == (world.base_name, start.name)
    lineage = (await world.ask("GET", f"/models/{version.model_id}/lineage")).json()
    assert lineage["started_from"] == start.model_dump(mode="json")


async def test_what_is_not_the_tenants_does_not_exist(world):
    job_id = await world.a_running_job()
    version = await world.a_version(job_id=job_id)
    for name in (version.full_name, version.model_id, f"ftckpt-{job_id}-1-10"):
        assert error_of(await submit(world, name, tenant="other")) == (404, "model_not_found", "model")
    for name in ("ft:nothing", f"ftckpt-{job_id}-1-11"):
        assert error_of(await submit(world, name)) == (404, "model_not_found", "model")


async def test_what_cannot_be_started_from_is_refused_by_name(world):
    version = await world.a_version(job_id=await world.a_running_job())
    for recipe, code, param in (
        ({"lora": {"rank": 4}}, "other_adapter", "lora.rank"),
        ({"method": "sft"}, "other_weights", "method"),
    ):
        answer = await submit(world, version.full_name, **recipe)
        assert error_of(answer) == (400, code, f"retune.recipe.{param}")
    answer = await submit(world, f"{version.full_name}@{a_sha('another')}")
    assert error_of(answer) == (400, "other_digest", "model")
    common = version.model_dump(include={"model_id", "tenant", "job_id", "digest", "full_name"})
    await world.voices.say("registry", ModelArchived(**common))
    await until(lambda: world.is_consumed("model.events", version.model_id, 3), "the archiving")
    assert error_of(await submit(world, version.full_name)) == (400, "archived", "model")


async def test_a_version_on_other_files_of_its_base_is_refused_with_the_base(world, monkeypatch):
    name = f"tiny-{mark()}"
    monkeypatch.setattr(world, "base_name", name)
    await world.register_base()
    version = await world.a_version(job_id=await world.a_running_job())
    monkeypatch.setattr(world, "base_sha", a_sha("other files"))
    await world.voices.say("registry", world.registered_base())
    await until(lambda: world.is_consumed("model.events", name, 2), "the other files")
    answer = await submit(world, version.full_name)
    assert error_of(answer) == (400, "stale_base", "model")
    assert answer.json()["error"]["message"].endswith(f"Nearest that works: model '{name}'")


async def test_a_deleted_checkpoint_starts_nothing_not_even_a_retry(world):
    job_id = await world.a_running_job()
    start = checkpoint_of(job_id)
    retried = (await submit(world, start.name)).json()["id"]
    await world.heard(retried, "SubmitJob")
    await expire(world, start)
    answer = await submit(world, start.name)
    assert error_of(answer) == (400, "checkpoint_deleted", "model")
    answer = await world.ask("POST", f"/fine_tuning/jobs/{retried}/retry")
    assert error_of(answer) == (400, "checkpoint_deleted", "fine_tuning_job_id")
    assert start.name in answer.json()["error"]["message"]


async def test_a_kept_checkpoint_of_a_job_that_is_over_becomes_a_version(world):
    job_id = await world.a_running_job()
    start = checkpoint_of(job_id)
    path = f"/fine_tuning/jobs/{job_id}/checkpoints/{start.name}/register"
    assert error_of(await world.ask("POST", path)) == (400, "job_active", "fine_tuning_job_id")
    for tenant, wrong, param in (
        ("other", path, "fine_tuning_job_id"),
        ("demo", path.replace("-1-10/", "-1-11/"), "checkpoint"),
        ("demo", path.replace("/ftckpt-", "/ftckpt-other-"), "checkpoint"),
    ):
        answer = await world.ask("POST", wrong, tenant=tenant)
        assert (answer.status_code, answer.json()["error"]["param"]) == (404, param)
    await end(world, JobCancelled(job_id=job_id, tenant="demo", reason="user", artifact=None, last_step=10))

    asked = asyncio.create_task(world.ask("POST", path))
    command = (await world.heard(job_id, "RegisterArtifact")).message
    assert (command.tenant, command.bundle) == ("demo", start.bundle)
    version = await world.a_version(job_id=job_id, bundle=start.bundle)
    assert (await asked).json()["id"] == version.full_name
    assert (await world.ask("POST", path)).json()["id"] == version.full_name
    sent = [each.message.type for each in world.ear.heard[job_id]]
    assert sent.count("RegisterArtifact") == 1


async def test_a_deleted_checkpoint_becomes_no_version(world):
    job_id = await world.a_running_job()
    start = checkpoint_of(job_id)
    await end(world, JobCancelled(job_id=job_id, tenant="demo", reason="user", artifact=None, last_step=10))
    await expire(world, start)
    path = f"/fine_tuning/jobs/{job_id}/checkpoints/{start.name}/register"
    assert error_of(await world.ask("POST", path)) == (400, "checkpoint_deleted", "checkpoint")


async def test_a_job_shows_the_gate_of_its_own_model(world):
    job_id = await world.a_running_job()
    own = await world.a_version(job_id=job_id)
    await end(world, world.succeeded(own))
    other = await world.a_version(job_id=job_id, bundle=checkpoint_of(job_id).bundle)
    of_other = other.model_dump(include={"model_id", "tenant", "job_id", "digest", "base_sha"})
    failed = EvalFailed(**of_other, eval_id=f"eval-{mark()}", checks=(), reason="worse", number=9)
    await world.voices.say("evaluator", failed)
    query = "SELECT true FROM evaluation WHERE eval_id = $1 AND outcome = 'failed'"
    await until(lambda: world.db.fetchval(query, failed.eval_id), "the other verdict")
    job = (await world.ask("GET", f"/fine_tuning/jobs/{job_id}")).json()
    assert (job["fine_tuned_model"], job["retune"]["gate"]["status"]) == (own.full_name, "passed")


async def end(world: World, fact: JobCancelled | JobSucceeded) -> None:
    await world.voices.say("scheduler", fact)
    query = "SELECT finished_at IS NOT NULL FROM job WHERE job_id = $1"
    await until(lambda: world.db.fetchval(query, fact.job_id), "the end of the job")


async def test_a_producer_names_no_other_weights_than_the_name_stands_for(world):
    version = await world.a_version(job_id=await world.a_running_job())
    start = StartFrom(
        name=version.full_name, job_id=version.job_id, bundle=version.bundle, digest=version.digest
    )
    training = {"training_file": await a_file(world)}
    for changes, code in (
        ({"digest": a_sha("another tenant's")}, "other_model"),
        ({"name": "ft:nothing"}, "unknown_model"),
    ):
        spec = world.spec(**training, start_from=start.model_copy(update=changes))
        command = SubmitJob(job_id=f"ftjob-{mark()}", tenant="demo", dataset_id=f"ds-{mark()}", spec=spec)
        refusal = await shown(world, "demo", await world.command("demo", command))
        assert refusal["code"] == code
    spec = world.spec(**training, start_from=start)
    command = SubmitJob(job_id=f"ftjob-{mark()}", tenant="demo", dataset_id=f"ds-{mark()}", spec=spec)
    await world.command("demo", command)
    assert (await world.heard(command.job_id, "SubmitJob")).message.spec.start_from == start


async def test_a_retry_continues_from_a_checkpoint_that_is_left(world):
    job_id = await world.a_running_job()
    path = f"/fine_tuning/jobs/{job_id}/retry?from_checkpoint=true"
    assert (await world.ask("POST", path)).status_code == 200
    assert (await world.heard(job_id, "RetryJob")).message.from_checkpoint
    await expire(world, checkpoint_of(job_id))
    assert error_of(await world.ask("POST", path)) == (400, "no_checkpoint", "from_checkpoint")
