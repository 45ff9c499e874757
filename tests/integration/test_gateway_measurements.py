"""What the trainer measured, through the official client: checkpoints, timeline, result file."""

import csv

import pytest

from schemas.job import JobCancelled
from schemas.training import StepsRecorded
from tests.integration.gateway_world import a_step, until, world

__all__ = ["world"]

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]


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
    event_id = await world.voices.say("runner", forged.model_copy(update=changes))

    async def is_kept() -> bool:
        return await world.db.fetchval(f"SELECT true FROM {table} WHERE event_id = $1", event_id)

    await until(is_kept, f"the claim in {table}")
    steps = await world.db.fetch("SELECT step, attempt FROM step WHERE job_id = $1", job_id)
    assert [tuple(row) for row in steps] == [(10, 1)]
