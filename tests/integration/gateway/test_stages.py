"""A job of several stages at the gateway: one command for each dataset, one job that shows where it is."""

import json
from typing import Any

import pytest

from schemas.base import DatasetRef, StartFrom
from schemas.job import (
    JobFact,
    JobQueued,
    JobScheduled,
    JobStage,
    JobStageCompleted,
    JobSubmitted,
    StagePlan,
    SubmitJob,
)
from schemas.specification import StageSpec
from shared.clock import utc_now
from tests.builders import a_bundle, a_file_ref, a_sha
from tests.integration.gateway.test_commands import a_file, shown
from tests.integration.gateway.test_measurements import say_verified
from tests.integration.gateway.world import World, mark
from tests.waiting import until

pytestmark = pytest.mark.stack

PAIR = json.dumps({"prompt": "a", "chosen": "b", "rejected": "c"}).encode() + b"\n"


async def submit(world: World, *stages: dict[str, Any], **recipe: Any) -> Any:
    uploaded = await world.upload()
    body = {"model": world.base_name, "training_file": uploaded["id"]}
    retune = {"recipe": recipe, "later_stages": stages}
    return await world.ask("POST", "/fine_tuning/jobs", json=body | {"retune": retune})


async def pairs(world: World) -> str:
    return (await world.upload(content=PAIR, name="pairs.jsonl"))["id"]


def until_second_stage(world: World, command: SubmitJob) -> tuple[JobFact, ...]:
    """Facts of a job of two stages, of 10 and 11 steps, until the first is trained. The second asks for the best."""
    job_id = command.job_id
    of_job = {"job_id": job_id, "tenant": "demo"}
    plans = tuple(
        StagePlan(
            recipe=each.recipe.model_copy(update={"load_best_model_at_end": index == 1}),
            dataset=DatasetRef(version=a_sha(str(index)), manifest_sha256=a_sha("m")),
            config_hash=a_sha(f"config {index}"),
            num_steps=10 + index,
            recipe_reasons={"num_epochs": f"1: of stage {index + 1}"},
        )
        for index, each in enumerate(command.spec.by_stage)
    )
    submitted = JobSubmitted(
        **of_job,
        dataset_id=command.dataset_id,
        later_dataset_ids=command.later_dataset_ids,
        spec=command.spec,
        submitted_at=utc_now(),
        stage=JobStage(number=1, num_stages=2),
    )
    queued = JobQueued(
        **of_job,
        dataset=plans[1].dataset,
        config_hash=plans[1].config_hash,
        num_steps=21,
        stages=plans,
        waiting_for="x",
    )
    start = StartFrom(name="stage 1", job_id=job_id, bundle=a_bundle())
    stage_two = JobStage(number=2, num_stages=2, first_attempt=2, steps_before=10, start=start)
    completed = JobStageCompleted(**of_job, attempt=1, stage=stage_two)
    scheduled = JobScheduled(
        **of_job,
        attempt=1,
        spec=command.spec.by_stage[0],
        base_sha=world.base_sha,
        dataset=plans[0].dataset,
        config_hash=plans[0].config_hash,
        resume=None,
        pool="p",
        capacity_type="spot",
        nodes=1,
        devices_per_node=1,
        grace_seconds=30,
        start_deadline=utc_now(),
        stage=submitted.stage,
    )
    return submitted, queued, scheduled, completed


async def test_each_stage_gets_its_dataset_and_the_job_shows_where_it_is(world):
    stage = {"recipe": {"method": "dpo"}, "training_file": await pairs(world), "policy": {"max_rows": 10}}
    answer = await submit(world, stage, lora={"rank": 4})
    assert answer.status_code == 200, answer.text
    job_id, shown_stages = answer.json()["id"], answer.json()["retune"]["stages"]
    assert [(each["status"], each["recipe_reasons"]) for each in shown_stages] == [
        ("present", {}),
        ("waiting", {}),
    ]
    command = (await world.heard(job_id, "SubmitJob")).message
    [second] = command.spec.later_stages
    assert (second.recipe.method, second.recipe.lora.rank) == ("dpo", 4)
    later = (await world.heard(command.later_dataset_ids[0], "SubmitDataset")).message
    assert (later.spec.training_file, later.spec.method) == (second.training_file, "dpo")
    assert later.spec.policy.max_rows == 10

    await world.voices.say("scheduler", *until_second_stage(world, command))
    await until(lambda: world.is_consumed("job.events", job_id, 4), "the second stage")
    job = (await world.ask("GET", f"/fine_tuning/jobs/{job_id}")).json()["retune"]
    assert (job["state"], job["stage"], job["num_steps"]) == ("queued", 2, 21)
    assert job["waiting_for"] == "capacity for stage 2 of 2"
    assert job["recipe_reasons"] == {}
    assert [each["recipe_reasons"]["num_epochs"] for each in job["stages"]] == [
        "1: of stage 1",
        "1: of stage 2",
    ]
    assert [(each["status"], each["steps_before"]) for each in job["stages"]] == [
        ("trained", 0),
        ("present", 10),
    ]
    events = (await world.ask("GET", f"/fine_tuning/jobs/{job_id}/events")).json()["data"]
    assert events[0]["message"] == "stage 1 of 2 is trained; stage 2 is next"

    for step, loss in ((5, 0.5), (15, 1.0), (20, 1.5)):
        await say_verified(world, job_id, step, loss)
    listed = (await world.ask("GET", f"/fine_tuning/jobs/{job_id}/checkpoints")).json()["data"]
    assert {each["step_number"]: each["retune"]["is_best"] for each in listed} == {
        5: False,
        15: True,
        20: False,
    }, "the best of the last stage becomes the model"


async def test_a_stage_that_cannot_follow_is_refused_with_its_place(world):
    file_id = await pairs(world)
    for stage, code, param in (
        ({"recipe": {"method": "dpo", "lora": {"rank": 8}}}, "other_adapter", "recipe.lora.rank"),
        ({"recipe": {"method": "dpo", "weights": "full"}}, "other_weights", "recipe.weights"),
        ({"recipe": {"method": "lora"}}, "wrong_format", "training_file"),
    ):
        answer = await submit(world, stage | {"training_file": file_id})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, code)
        assert error["param"] == f"retune.later_stages[0].{param}"


async def test_a_producer_names_only_files_of_its_tenant_in_any_stage(world):
    stage = StageSpec(training_file=a_file_ref("nobody's"))
    spec = world.spec(training_file=await a_file(world), later_stages=(stage,))
    command = SubmitJob(
        job_id=f"ftjob-{mark()}",
        tenant="demo",
        dataset_id=f"ds-{mark()}",
        later_dataset_ids=(f"ds-{mark()}",),
        spec=spec,
    )
    refusal = await shown(world, "demo", await world.command("demo", command))
    assert (refusal["code"], refusal["param"]) == ("unknown_file", "spec.later_stages[0].training_file")
