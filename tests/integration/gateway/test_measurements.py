"""What the trainer measured, through the official client: checkpoints, timeline, result file."""

import csv

import pytest

from schemas.base import BundleRef
from schemas.checkpoint import CheckpointVerified
from schemas.job import JobCancelled
from schemas.specification import EarlyStoppingSpec, Recipe
from schemas.training import BundleKind, CheckpointWritten, StepsRecorded, StepValidated
from tests.builders import a_sha
from tests.integration.gateway.world import a_step
from tests.waiting import until

pytestmark = pytest.mark.stack


@pytest.fixture
async def client(world):
    async with world.client() as client:
        yield client


async def test_a_checkpoint_has_its_numbers_as_the_trainer_names_them(world, client):
    job_id = await world.a_running_job()
    (checkpoint,) = (await client.fine_tuning.jobs.checkpoints.list(job_id)).data
    shown = checkpoint.metrics.model_dump()
    assert (shown["step"], shown["train_loss"], shown["valid_loss"]) == (10, 2.0, 2.5)


async def test_the_timeline_has_them_as_events_of_their_own_type(world, client):
    job_id = await world.a_running_job()
    events = (await client.fine_tuning.jobs.list_events(job_id, limit=100)).data
    by_message = {event.message: event.data for event in events if event.type == "metrics"}
    assert by_message.keys() == {"Step 10/40: training loss 2.0000", "Step 10/40: validation loss 2.5000"}
    for data in by_message.values():
        assert (data["step"], data["total_steps"], data["train_loss"]) == (10, 40, 2.0)


async def test_validations_at_given_steps_are_events_steps_and_progress(world, client):
    recipe = Recipe(eval_every_steps=5, early_stopping=EarlyStoppingSpec())
    job_id = await world.a_running_job(recipe=recipe)
    validations = tuple(
        StepValidated(step=step, metrics={"valid_loss": 2.5, "full_valid_loss": 3.0 - step / 10})
        for step in (5, 10)
    )
    steps = StepsRecorded(
        job_id=job_id, tenant="demo", attempt=1, steps=(a_step(5), a_step(10)), validations=validations
    )
    await world.record(steps)

    async def progress():
        return (await world.ask("GET", f"/fine_tuning/jobs/{job_id}")).json()["retune"]["progress"]

    async def is_shown():
        return (await progress())["valid_loss"]

    await until(is_shown, "the validation loss")
    assert ((await progress())["done"], (await progress())["valid_loss"]) == (10, 2.0)
    events = (await client.fine_tuning.jobs.list_events(job_id, limit=100)).data
    losses = {event.message: event.data for event in events if "validation loss" in event.message}
    assert losses.keys() == {"Step 5/40: validation loss 2.5000", "Step 10/40: validation loss 2.0000"}
    data = losses["Step 10/40: validation loss 2.0000"]
    assert (data["valid_loss"], data["full_valid_loss"], data["total_steps"]) == (2.5, 2.0, 40)
    steps = (await world.ask("GET", f"/fine_tuning/jobs/{job_id}/metrics")).json()["data"]
    assert [(each["step"], each["full_valid_loss"]) for each in steps] == [(5, 2.5), (10, 2.0)]
    newest = (await world.ask("GET", f"/fine_tuning/jobs/{job_id}")).json()["retune"]["newest_step"]
    assert newest == steps[1]
    assert (await progress())["seconds_left"] >= 0


@pytest.mark.parametrize("is_asked", [True, False])
async def test_the_best_checkpoint_is_marked_where_the_recipe_asks_for_it(world, is_asked):
    job_id = await world.a_running_job(recipe=Recipe(load_best_model_at_end=is_asked))
    for step, loss in ((20, 1.5), (30, 1.25), (40, 1.75)):
        await say_verified(world, job_id, step, loss)
    listed = (await world.ask("GET", f"/fine_tuning/jobs/{job_id}/checkpoints")).json()["data"]
    shown = {each["step_number"]: each["retune"]["is_best"] for each in listed}
    assert shown == {10: False, 20: False, 30: is_asked, 40: False}


async def test_a_job_has_the_newest_loss_also_where_its_recipe_names_no_steps(world):
    job_id = await world.a_running_job()
    for step, loss in ((20, 1.5), (30, 1.25)):
        await say_verified(world, job_id, step, loss)
        assert await world.db.fetchval("SELECT valid_loss FROM job WHERE job_id = $1", job_id) == loss
    await say_verified(world, job_id, 40, None)
    assert await world.db.fetchval("SELECT valid_loss FROM job WHERE job_id = $1", job_id) == 1.25


async def say_verified(world, job_id, step, full_valid_loss):
    """That a checkpoint of the job's first attempt is written and verified, until the gateway shows it."""
    bundle = BundleRef(attempt=1, step=step, manifest_sha256=a_sha(f"{job_id} {step}"))
    written = CheckpointWritten(
        job_id=job_id,
        tenant="demo",
        attempt=1,
        bundle=bundle,
        kind=BundleKind.PERIODIC,
        metrics={} if full_valid_loss is None else {"full_valid_loss": full_valid_loss},
    )
    await world.voices.say("trainer_agent", written)
    verified = CheckpointVerified(job_id=job_id, tenant="demo", bundle=bundle, size_bytes=10)
    await world.voices.say("checkpoint_watcher", verified)

    async def is_shown():
        listed = (await world.ask("GET", f"/fine_tuning/jobs/{job_id}/checkpoints")).json()["data"]
        return step in {each["step_number"] for each in listed}

    await until(is_shown, f"checkpoint {step}")


async def test_a_job_has_a_file_of_them_once_training_is_over(world, client):
    job_id = await world.a_running_job()

    async def result_files():
        return (await client.fine_tuning.jobs.retrieve(job_id)).result_files

    assert await result_files() == []
    cancelled = JobCancelled(job_id=job_id, tenant="demo", reason="user", artifact=None, last_step=10)
    await world.voices.say("scheduler", cancelled)
    await until(result_files, "the result file")
    (file_id,) = await result_files()
    file = await client.files.retrieve(file_id)
    assert (file.filename, file.purpose) == ("step_metrics.csv", "fine-tune-results")
    (line,) = csv.DictReader((await client.files.content(file_id)).text.splitlines())
    assert (line["step"], line["train_loss"], line["valid_loss"]) == ("10", "2.0", "2.5")
    assert (await world.ask("GET", f"/files/{file_id}/content", tenant="other")).status_code == 404
    assert (await client.files.delete(file_id)).deleted
    assert await result_files() == []


@pytest.mark.parametrize(("changes", "table"), [({"attempt": 9}, "waiting"), ({"tenant": "other"}, "parked")])
async def test_what_a_runner_claims_of_an_attempt_or_tenant_not_its_own_is_not_shown(
    world, client, changes, table
):
    job_id = await world.a_running_job()
    forged = StepsRecorded(job_id=job_id, tenant="demo", attempt=1, steps=(a_step(10), a_step(39)))
    event_id = await world.record(forged.model_copy(update=changes))

    async def is_kept() -> bool:
        return await world.db.fetchval(f"SELECT true FROM {table} WHERE event_id = $1", event_id)

    await until(is_kept, f"the claim in {table}")
    steps = await world.db.fetch("SELECT step, attempt FROM step WHERE job_id = $1", job_id)
    assert [tuple(row) for row in steps] == [(10, 1)]
