"""Models as the gateway shows them: evidence, approvals, withdrawals, and asking for one more evaluation."""

import asyncio
import json
from typing import Any

import pytest

from schemas import layout
from schemas.base import CommandRefused
from schemas.evaluation import EvalFailed, EvalPassed, EvalStarted, Evidence, JudgedSuite, ReevaluateModel
from schemas.job import JobSucceeded
from schemas.model import BaseModelRegistered, ModelArchived, ModelDemoted, ModelPromoted, Stage
from tests.builders import a_sha
from tests.integration.gateway.world import World, mark
from tests.waiting import until

pytestmark = pytest.mark.stack

EVIDENCE = Evidence(
    harness_version="harness 1",
    rules={"benchmarks.margin_points": "2.0"},
    required_checks=("benchmark", "safety"),
    suites=(
        JudgedSuite(
            check="safety", name="refusals", digest=a_sha("suite"), rows=120, is_checked_against_rows=False
        ),
    ),
    holdout_sha256=None,
)


def of_model(version: Any) -> dict[str, Any]:
    return version.model_dump(include={"model_id", "tenant", "job_id", "digest"})


def of_eval(version: Any, number: int) -> dict[str, Any]:
    eval_id = f"eval-{version.model_id}-{number}"
    return of_model(version) | {"eval_id": eval_id, "base_sha": version.base_sha, "number": number}


async def get(world: World, version: Any, path: str = "") -> dict[str, Any]:
    return (await world.ask("GET", f"/models/{version.model_id}{path}")).json()


async def stage_is(world: World, version: Any, stage: str) -> bool:
    return (await get(world, version))["retune"]["stage"] == stage


async def test_an_approval_without_a_holdout_stands_in_model_and_lineage(world):
    version = await world.a_version()
    await world.voices.say("evaluator", EvalPassed(**of_eval(version, 1), checks=(), evidence=EVIDENCE))
    approved = ModelPromoted(
        **of_model(version),
        full_name=version.full_name,
        stage=Stage.PRODUCTION,
        eval_id="eval-1",
        has_holdout=False,
        approved_by="key-1 of tenant demo",
        approval_reason="a house style",
        accepted_without_holdout=True,
    )
    await world.voices.say("registry", approved)
    await until(lambda: stage_is(world, version, "production"), "production")
    shown = {
        "has_holdout": False,
        "approved_by": "key-1 of tenant demo",
        "approval_reason": "a house style",
        "accepted_without_holdout": True,
    }
    assert shown.items() <= (await get(world, version))["retune"].items()

    async def lineage() -> Any:
        body = await get(world, version, "/lineage")
        return body if body["evaluation"]["evidence"] else None

    body = await until(lineage, "the evidence")
    assert shown.items() <= body.items()
    assert body["evaluation"]["evidence"] == EVIDENCE.model_dump(mode="json")


async def test_a_model_that_is_registered_after_its_job_ended_is_shown_with_the_job(world):
    """Its first copy had failed. What was registered of the job first stays."""
    job_id = await world.a_running_job()
    without = JobSucceeded(
        job_id=job_id,
        tenant="demo",
        fine_tuned_model=None,
        model_id=None,
        promoted=False,
        deployed=False,
        message="its artifact could not be copied",
    )

    async def shown() -> Any:
        job = (await world.ask("GET", f"/fine_tuning/jobs/{job_id}")).json()
        return job["status"], job["fine_tuned_model"]

    async def has_succeeded() -> bool:
        return (await shown())[0] == "succeeded"

    await world.voices.say("scheduler", without)
    await until(has_succeeded, "the job's end")
    assert await shown() == ("succeeded", None)
    first = await world.a_version(job_id=job_id)
    assert await shown() == ("succeeded", first.full_name)
    await world.a_version(job_id=job_id)
    assert await shown() == ("succeeded", first.full_name)


async def test_a_demoted_version_is_in_dev_and_its_approval_void(world):
    version = await world.a_version()
    promoted = ModelPromoted(
        **of_model(version),
        full_name=version.full_name,
        stage=Stage.PRODUCTION,
        eval_id="eval-1",
        approved_by="ann",
    )
    demoted = ModelDemoted(
        **of_model(version), full_name=version.full_name, eval_id="eval-2", reason="safety failed"
    )
    await world.voices.say("registry", promoted, demoted)
    await until(lambda: stage_is(world, version, "dev"), "the demotion")
    assert (await get(world, version))["retune"]["approved_by"] is None


async def test_the_newest_verdict_is_shown_whichever_comes_first(world):
    version = await world.a_version()
    newer = EvalFailed(**of_eval(version, 2), checks=(), reason="safety")
    older = EvalPassed(**of_eval(version, 1), checks=())
    for number, fact in enumerate((newer, older)):
        await world.voices.say("evaluator", fact)
        await until(lambda: world.is_consumed("eval.events", fact.eval_id, 1), f"verdict {number}")  # noqa: B023
    assert (await get(world, version, "/evaluation"))["outcome"] == "failed"


async def asked(world: World, version: Any, **headers: str) -> Any:
    return await world.ask("POST", f"/models/{version.model_id}/evaluate", headers=headers)


async def answer(world: World, version: Any, fact: Any) -> str:
    """As the evaluator, to the newest ReevaluateModel of the version; the command's id."""
    sent = await world.heard(version.model_id, "ReevaluateModel")
    await world.voices.say("evaluator", fact, causation_id=sent.envelope.id)
    return str(sent.envelope.id)


async def test_an_evaluation_that_is_asked_for_is_the_answer(world):
    version = await world.a_version()
    started = EvalStarted(**of_eval(version, 2))
    response, _ = await asyncio.gather(asked(world, version), answer(world, version, started))
    assert (response.status_code, response.json()["id"]) == (200, started.eval_id)
    assert (response.json()["outcome"], response.json()["number"]) == ("running", 2)


async def test_the_same_key_asks_once(world):
    version, key = await world.a_version(), {"idempotency-key": mark()}
    started = EvalStarted(**of_eval(version, 2))
    first, _ = await asyncio.gather(asked(world, version, **key), answer(world, version, started))
    again = await asked(world, version, **key)
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
    assert world.ear.types(version.model_id).count("ReevaluateModel") == 1
    other = await asked(world, await world.a_version(), **key)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")


async def test_a_refusal_is_the_answer(world):
    version = await world.a_version()
    refusal = CommandRefused(
        subject_id=version.model_id,
        command="ReevaluateModel",
        command_id="",
        code="already_running",
        message=f"model {version.model_id} is being evaluated",
        param="model_id",
        tenant="demo",
    )

    async def refuse() -> None:
        sent = await world.heard(version.model_id, "ReevaluateModel")
        named = refusal.model_copy(update={"command_id": sent.envelope.id})
        await world.voices.say("evaluator", named, causation_id=sent.envelope.id)

    response, _ = await asyncio.gather(asked(world, version), refuse())
    assert (response.status_code, response.json()["error"]["code"]) == (400, "already_running")


async def register(world: World, base_sha: str) -> None:
    """The base model's name points to these files from now on."""
    fact = BaseModelRegistered(
        name=world.base_name,
        base_sha=base_sha,
        manifest_sha256=a_sha("manifest"),
        source="directory",
        template_sha256=a_sha("template"),
        context_tokens=512,
        num_parameters=1,
    )
    await world.voices.say("registry", fact)


async def test_what_cannot_be_served_is_not_evaluated(world):
    archived, stale = await world.a_version(), await world.a_version()
    await world.voices.say("registry", ModelArchived(**of_model(archived), full_name=archived.full_name))
    await register(world, a_sha("other files"))
    await until(lambda: stage_is(world, archived, "archived"), "the archival")

    async def is_stale() -> bool:
        return bool((await get(world, stale))["retune"]["is_stale"])

    await until(is_stale, "the other files")
    for version, code in ((archived, "archived"), (stale, "stale")):
        response = await asked(world, version)
        assert (response.status_code, response.json()["error"]["code"]) == (400, code)
        assert "ReevaluateModel" not in world.ear.types(version.model_id)
    assert (await get(world, await world.a_version()))["retune"]["is_stale"]
    await register(world, world.base_sha)

    async def is_current() -> bool:
        return not await is_stale()

    await until(is_current, "the first files again")


async def test_a_producer_asks_for_its_own_models_alone(world):
    own, foreign = await world.a_version(), await world.a_version("other")
    await world.command("demo", ReevaluateModel(model_id=own.model_id, tenant="demo"))
    assert (await world.heard(own.model_id, "ReevaluateModel")).topic.name == "eval.commands"
    await world.command("demo", ReevaluateModel(model_id=foreign.model_id, tenant="demo"))
    refused = await world.heard(foreign.model_id, "CommandRefused")
    assert (refused.topic.name, refused.message.code) == ("tenant.events", "unknown_model")
    assert "ReevaluateModel" not in world.ear.types(foreign.model_id)


async def judged(world: World, version: Any) -> str:
    """An evaluation of the version, over and with 150 items in the holdout and 1 in a suite; its id."""
    fact = EvalFailed(**of_eval(version, 2), checks=(), reason="holdout", evidence=EVIDENCE)
    for group, count in (("holdout", 150), ("suites", 1)):
        lines = [json.dumps({"outcome": "failed", "prompt": f"{group} {n}"}) for n in range(1, count + 1)]
        for page in range(0, count, layout.ITEMS_OF_A_PAGE):
            key = layout.evaluation_items(fact.eval_id, group, page // layout.ITEMS_OF_A_PAGE)
            await world.objects.put_bytes(
                key, "\n".join(lines[page : page + layout.ITEMS_OF_A_PAGE]).encode()
            )
    log = layout.evaluation(fact.eval_id, layout.EVALUATION_LOG)
    await world.objects.put_bytes(log, b"a warning of a library\n")
    await world.voices.say("evaluator", fact)
    await until(lambda: world.is_consumed("eval.events", fact.eval_id, 1), "the verdict")
    return str(fact.eval_id)


async def test_items_of_the_holdout_are_paged_and_those_of_suites_are_the_operators(world):
    version = await world.a_version()
    eval_id = await judged(world, version)
    prompts, after = [], ""
    while True:
        page = await get(world, version, f"/evaluation/items?limit=60{after}")
        prompts += [item["prompt"] for item in page["data"]]
        if not page["has_more"]:
            break
        after = f"&after={page['last_id']}"
    assert prompts == [f"holdout {n}" for n in range(1, 151)]
    path = f"/admin/evaluations/{eval_id}/items"
    assert (await world.ask("GET", path)).status_code == 401
    operators = {"authorization": f"Bearer {world.stack.operator_env()['RETUNE_ADMIN_KEY']}"}
    listed = (await world.ask("GET", path, headers=operators)).json()
    assert [item["prompt"] for item in listed["data"]] == ["suites 1"]
    foreign = await world.ask("GET", f"/models/{version.model_id}/evaluation/items", tenant="other")
    assert foreign.status_code == 404


async def test_the_log_of_an_evaluation_is_shown(world):
    version = await world.a_version()
    await judged(world, version)
    assert (await get(world, version, "/evaluation/log"))["text"] == "a warning of a library\n"
    unscored = await world.a_version()
    assert (await world.ask("GET", f"/models/{unscored.model_id}/evaluation/log")).status_code == 404


async def test_a_submitted_job_shows_its_base_model(world):
    body = {"model": world.base_name, "training_file": (await world.upload())["id"]}
    job = (await world.ask("POST", "/fine_tuning/jobs", json=body)).json()
    model = (await world.ask("GET", f"/models/{world.base_name}")).json()
    assert model["retune"] == {"kind": "base", **job["retune"]["base_model"]}
    assert job["retune"]["base_model"]["base_sha"] == world.base_sha
