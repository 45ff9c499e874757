"""Sweeps at the API: what becomes a SubmitSweep, what is refused, and what is shown of its trials."""

from typing import Any

import pytest

from schemas.base import TrialOf
from schemas.job import JobSubmitted, SubmitJob
from schemas.sweep import (
    SweepEnded,
    SweepState,
    SweepStopping,
    SweepSubmitted,
    TrialEnded,
    TrialState,
    TrialSubmitted,
)
from shared.clock import utc_now
from tests.builders import a_file_ref, a_sha
from tests.integration.gateway.world import World, mark
from tests.waiting import until

pytestmark = pytest.mark.stack

RATE = {"low": 1e-5, "high": 1e-3, "log": True}
PARAMETERS = {"learning_rate": RATE, "lora.rank": {"choices": [8, 16]}}


async def a_body(world: World, **changes: Any) -> dict[str, Any]:
    files = [(await world.upload(name=name))["id"] for name in ("train.jsonl", "valid.jsonl")]
    job = {"model": world.base_name, "training_file": files[0], "validation_file": files[1]}
    job["retune"] = {"allow_ungated": True}
    return {"job": job, "parameters": PARAMETERS, "num_trials": 5, "concurrency": 2} | changes


async def a_sweep(world: World, **changes: Any) -> dict[str, Any]:
    answer = await world.ask("POST", "/sweeps", json=await a_body(world, **changes))
    assert answer.status_code == 200, answer.text
    return answer.json()


async def begin_trials(world: World, sweep_id: str, *values: dict[str, Any]) -> list[str]:
    """Send what the tracker sends, and the scheduler of the jobs; the ids of these."""
    command = (await world.heard(sweep_id, "SubmitSweep")).message
    facts: list[Any] = [
        SweepSubmitted(
            sweep_id=sweep_id, tenant="demo", dataset_id=command.dataset_id, spec=command.spec,
            submitted_at=utc_now(),
        )
    ]  # fmt: skip
    jobs = [f"ftjob-{mark()}" for _ in values]
    for number, (job_id, parameters) in enumerate(zip(jobs, values, strict=True)):
        facts.append(
            TrialSubmitted(
                sweep_id=sweep_id, tenant="demo", number=number, job_id=job_id, parameters=parameters,
                config_hash=a_sha(job_id),
            )
        )  # fmt: skip
        spec = command.spec.job.model_copy(update={"trial": TrialOf(sweep_id=sweep_id, number=number)})
        submitted = JobSubmitted(
            job_id=job_id, tenant="demo", dataset_id=command.dataset_id, spec=spec, submitted_at=utc_now()
        )
        await world.voices.say("scheduler", submitted)
        await until(lambda job_id=job_id: world.is_consumed("job.events", job_id, 1), "the job")
    await world.voices.say("tracker", *facts)
    await until(lambda: world.is_consumed("sweep.events", sweep_id, len(facts)), "the trials")
    return jobs


def ended(sweep_id: str, number: int, job_id: str, state: TrialState, loss: float | None) -> TrialEnded:
    return TrialEnded(
        sweep_id=sweep_id, tenant="demo", number=number, job_id=job_id, state=state, valid_loss=loss
    )


async def test_a_sweep_is_one_dataset_and_one_command(world: World):
    body = await a_body(world, algorithm="random", pruning={"rule": "median"}, max_cost="7.50", name="rates")
    headers = {"idempotency-key": mark()}
    first = await world.ask("POST", "/sweeps", json=body, headers=headers)
    again = await world.ask("POST", "/sweeps", json=body, headers=headers)
    sweep = first.json()
    assert (again.json()["id"], again.headers["idempotent-replayed"]) == (sweep["id"], "true")
    assert (sweep["state"], sweep["name"], sweep["model"]) == ("running", "rates", world.base_name)
    command = (await world.heard(sweep["id"], "SubmitSweep")).message
    dataset = (await world.heard(command.dataset_id, "SubmitDataset")).message
    assert dataset.spec.validation_file.filename == "valid.jsonl"
    assert (command.tenant, command.spec.num_trials, str(command.spec.max_cost)) == ("demo", 5, "7.50")
    assert command.spec.parameters["learning_rate"].log
    listed = (await world.ask("GET", "/sweeps?limit=1")).json()
    assert (listed["data"][0]["id"], listed["data"][0]["trials"]) == (sweep["id"], [])
    search = listed["data"][0]["search"]
    assert (search["max_cost"], search["pruning"]["rule"]) == ("7.50", "median")
    following = (await world.ask("GET", f"/sweeps?after={sweep['id']}")).json()["data"]
    assert sweep["id"] not in [each["id"] for each in following]


async def test_trials_are_shown_with_their_jobs_and_the_best_of_them(world: World):
    sweep = (await a_sweep(world))["id"]
    values = [{"learning_rate": rate, "lora.rank": 8} for rate in (1e-4, 2e-4, 3e-4)]
    jobs = await begin_trials(world, sweep, *values)
    await world.db.execute("UPDATE job SET cost = 1.25 WHERE job_id = $1", jobs[0])
    facts = [
        ended(sweep, 0, jobs[0], TrialState.COMPLETED, 2.0),
        ended(sweep, 1, jobs[1], TrialState.COMPLETED, 1.5),
        ended(sweep, 2, jobs[2], TrialState.PRUNED, 1.0),
    ]
    await world.voices.say("tracker", *facts)
    await until(lambda: world.is_consumed("sweep.events", sweep, 7), "their ends")
    shown = (await world.ask("GET", f"/sweeps/{sweep}")).json()
    assert [(each["number"], each["state"], each["valid_loss"]) for each in shown["trials"]] == [
        (0, "completed", 2.0),
        (1, "completed", 1.5),
        (2, "pruned", 1.0),
    ]
    assert shown["trials"][2]["parameters"] == values[2]
    assert (shown["best"]["number"], shown["cost_usd"]) == (1, "1.250000")
    assert shown["trials_by_state"] == {"completed": 2, "pruned": 1}
    job = (await world.ask("GET", f"/fine_tuning/jobs/{jobs[1]}")).json()
    assert job["retune"]["trial"] == {"sweep_id": sweep, "number": 1}
    end = SweepEnded(
        sweep_id=sweep, tenant="demo", state=SweepState.SUCCEEDED, best=1, best_valid_loss=1.5, num_trials=3,
        cost=2, message="all trials have ended",
    )  # fmt: skip
    await world.voices.say("tracker", end)
    await until(lambda: world.is_consumed("sweep.events", sweep, 8), "its end")
    shown = (await world.ask("GET", f"/sweeps/{sweep}")).json()
    assert (shown["state"], shown["message"]) == ("succeeded", "all trials have ended")
    assert shown["finished_at"] >= shown["created_at"]


async def test_a_sweep_is_cancelled_by_its_tenant_alone(world: World):
    sweep = (await a_sweep(world))["id"]
    for method, path in (("GET", f"/sweeps/{sweep}"), ("POST", f"/sweeps/{sweep}/cancel")):
        assert (await world.ask(method, path, tenant="other")).status_code == 404
    waiting = world.ask("POST", f"/sweeps/{sweep}/cancel")
    answer = await waiting
    assert answer.json()["state"] == "running", "the tracker has not answered"
    command = await world.heard(sweep, "CancelSweep")
    stopping = SweepStopping(sweep_id=sweep, tenant="demo", cause="user", message="cancelled")
    await world.voices.say("tracker", stopping, causation_id=command.envelope.id)
    await until(lambda: world.is_consumed("sweep.events", sweep, 1), "the stop")
    assert (await world.ask("GET", f"/sweeps/{sweep}")).json()["state"] == "stopping"


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"parameters": {"method": {"choices": ["lora", "sft"]}}}, "parameters", "unknown_parameter"),
        ({"algorithm": "grid"}, "parameters.learning_rate", "endless_grid"),
        ({"parameters": {"lora.rank": {"choices": [8, 9000]}}}, "parameters.lora.rank", "invalid_parameter"),
        ({"num_trials": 0}, "num_trials", None),
        ({"trials": 5}, "trials", "unknown_parameter"),
    ],
)
async def test_what_could_not_run_is_refused_with_its_parameter(world: World, changes, param, code):
    answer = await world.ask("POST", "/sweeps", json=await a_body(world, **changes))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert code is None or error["code"] == code


async def test_trials_need_a_validation_file_and_files_of_the_tenants_own(world: World):
    body = await a_body(world)
    without = body | {
        "job": {name: value for name, value in body["job"].items() if name != "validation_file"}
    }
    error = (await world.ask("POST", "/sweeps", json=without)).json()["error"]
    assert (error["code"], error["param"]) == ("no_validation_file", "job.validation_file")
    error = (await world.ask("POST", "/sweeps", json=body, tenant="other")).json()["error"]
    assert (error["code"], error["param"]) == ("file_not_found", "job.training_file")


async def test_a_sweep_counts_as_so_many_open_jobs_as_it_may_have(world: World):
    before = (await world.ask("GET", "/quotas")).json()["used"]
    sweep = (await a_sweep(world, num_trials=9, concurrency=3))["id"]
    usage = (await world.ask("GET", "/quotas")).json()["used"]
    assert usage["open_jobs"] == before["open_jobs"] + 3
    assert usage["commands_per_day"] == before["commands_per_day"] + 11
    await begin_trials(world, sweep, {"learning_rate": 1e-4, "lora.rank": 8})
    assert (await world.ask("GET", "/quotas")).json()["used"]["open_jobs"] == usage["open_jobs"]


async def test_a_producer_submits_no_trial_of_its_own(world: World):
    spec = world.spec(training_file=a_file_ref(), trial=TrialOf(sweep_id="sweep-1", number=0))
    job_id = f"ftjob-{mark()}"
    upload = await world.upload()
    ref = spec.training_file.model_copy(
        update={"file_id": upload["id"], "sha256": upload["retune"]["sha256"], "size_bytes": upload["bytes"]}
    )
    command = SubmitJob(
        job_id=job_id,
        tenant="demo",
        dataset_id=f"ds-{mark()}",
        spec=spec.model_copy(update={"training_file": ref}),
    )
    await world.command("demo", command)
    refused = (await world.heard(job_id, "CommandRefused")).message
    assert (refused.code, refused.param) == ("not_a_trial", "spec.trial")
