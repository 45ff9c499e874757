"""The evaluator on real Kafka, Postgres and S3, scoring a tiny Llama and adapters trained for it."""

import hashlib
import json
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.local.stack import Stack
from schemas import layout
from schemas.base import CommandRefused, FileRef
from schemas.evaluation import (
    BaselineRecorded,
    BenchmarkKind,
    BenchmarkRegistered,
    EvalCheckCompleted,
    EvalFailed,
    EvalInconclusive,
    EvalPassed,
    EvalStarted,
    ReevaluateModel,
    RegisterBenchmark,
    RegisterSafetySuite,
    SafetySuiteRegistered,
)
from schemas.model import PromotionRefused
from services.evaluator.gates.checks import CHECKS
from shared.processes.identity import Identity
from tests.chaos.scale import at_night
from tests.integration.evaluator_world import World, a_job, its_version
from tests.scoring.tiny import HARM, QUESTIONS, REFUSAL, TEXT, VOCABULARY, train_adapter
from tests.stored import put_base
from tests.tiny_model import build_tiny_model, template_text
from tests.waiting import until

pytestmark = [pytest.mark.stack, pytest.mark.torch]

HARM_ASKED, QUESTIONS_ASKED, HOLDOUT = HARM[:120], QUESTIONS[30:130], QUESTIONS[:100]

VERDICTS = (EvalPassed, EvalFailed, EvalInconclusive)


@dataclass(frozen=True)
class Models:
    base: Path
    good: Path
    """Answers and refuses."""
    unsafe: Path
    """Answers and never refuses."""
    untrained: Path


@dataclass(frozen=True)
class Setting:
    """What is registered before any job comes."""

    base_sha: str
    template_sha256: str
    holdout: FileRef
    benchmarks: dict[str, str]
    suites: dict[str, str]

    def job(self, **changes):
        return a_job(**({name: getattr(self, name) for name in self.__dataclass_fields__} | changes))


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Models:
    folder = tmp_path_factory.mktemp("models")
    base = build_tiny_model(folder / "base", text=VOCABULARY)
    answers = [(question, "alpha") for question in QUESTIONS]
    refusals = [(prompt, REFUSAL) for prompt in HARM]
    both = [exchange for pair in zip(answers, refusals, strict=True) for exchange in pair]
    return Models(
        base=base,
        good=train_adapter(base, folder / "good", both, steps=50),
        unsafe=train_adapter(base, folder / "unsafe", answers, steps=20),
        untrained=train_adapter(base, folder / "untrained", [], steps=0),
    )


@pytest.fixture(scope="module")
async def world(stack: Stack) -> AsyncIterator[World]:
    await stack.start("evaluator", env={"EVALUATOR_SCORING_THREADS": "1", "EVALUATOR_MAX_NEW_TOKENS": "16"})
    await stack.wait_healthy("evaluator")
    async with World.on(stack) as world:
        yield world
    await stack.stop("evaluator")


@pytest.fixture(scope="module")
async def setting(world: World, models: Models) -> Setting:
    texts = await world.put_rows([{"text": line} for line in TEXT.splitlines()[:40]])
    prompts = await world.put_rows([{"prompt": prompt, "category": "theft"} for prompt in HARM_ASKED])
    harmless = await world.put_rows([{"prompt": question} for question in QUESTIONS_ASKED])
    margin = {"margin_points": 10.0}
    await world.send(
        "gateway", RegisterBenchmark(name="modules", kind=BenchmarkKind.TEXT, file=texts, **margin)
    )
    await world.send("gateway", RegisterSafetySuite(name="theft", file=prompts))
    await world.send("gateway", RegisterSafetySuite(name="questions", file=harmless, expects="answer"))
    benchmark = await world.until(lambda event: isinstance(event, BenchmarkRegistered), "the benchmark")
    suite, benign = [
        await world.until(
            lambda event, expects=expects: (
                isinstance(event, SafetySuiteRegistered) and event.expects == expects
            ),
            "the suite",
        )
        for expects in ("refusal", "answer")
    ]
    assert (benchmark.rows, suite.rows, benign.rows, benchmark.margin_points) == (40, 120, 100, 10.0)
    template_sha256 = hashlib.sha256(template_text(models.base).encode()).hexdigest()
    return Setting(
        base_sha=await put_base(world.objects, models.base, template_sha256=template_sha256),
        template_sha256=template_sha256,
        holdout=await world.put_rows([chat(question, "alpha") for question in HOLDOUT]),
        benchmarks={"modules": benchmark.digest},
        suites={"theft": suite.digest, "questions": benign.digest},
    )


def chat(question: str, answer: str) -> dict:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


async def evaluate(world: World, job, model: Path, *, version_first: bool = False):
    """Send both facts of a job; its verdict."""
    digest = await world.put_model(model, base_sha=job.base_sha, job_id=job.job_id, bundle=job.bundle)
    facts = [("scheduler", job), ("registry", its_version(job, digest))]
    for user, fact in reversed(facts) if version_first else facts:
        await world.send(user, fact)
    return await verdict_of(world, job.job_id)


async def verdict_of(world: World, job_id: str):
    return await world.until(
        lambda event: isinstance(event, VERDICTS) and event.job_id == job_id, f"a verdict on {job_id}"
    )


def outcomes(verdict) -> list[str]:
    return [check.outcome for check in verdict.checks]


async def test_a_good_adapter_passes_with_every_number(world: World, setting: Setting, models: Models):
    job = setting.job()
    verdict = await evaluate(world, job, models.good)
    assert type(verdict) is EvalPassed, verdict
    assert outcomes(verdict) == ["passed", "passed", "passed", "passed", "not_requested"]
    events = world.about(job.job_id)
    assert [type(event) for event in events] == [EvalStarted, *[EvalCheckCompleted] * len(CHECKS), EvalPassed]
    assert tuple(event.result for event in events[1:-1]) == verdict.checks
    progress = world.progress_of(job.job_id)
    assert {"benchmark", "holdout", "safety"} <= {each.activity for each in progress}
    assert all(each.items_done <= (each.items_total or 0) for each in progress)
    assert all((each.seconds_left is None) == (each.activity == "loading") for each in progress)
    criteria = {criterion.name: criterion for check in verdict.checks for criterion in check.criteria}
    counts = {name: criteria[name].count for name in ("modules", "theft", "questions", "relative_gain")}
    assert counts == {"modules": 40, "theft": 120, "questions": 100, "relative_gain": 100}
    assert [(each.category, each.count) for each in criteria["theft"].categories] == [("theft", 120)]
    assert all(
        criterion.interval.low <= criterion.value <= criterion.interval.high
        for criterion in criteria.values()
    )
    raw = await world.objects.get_bytes(layout.evaluation(verdict.eval_id, "results.json"))
    assert json.loads(raw)["details"]["probe"]["max_logit_change"] > 0
    items = await world.objects.get_bytes(layout.evaluation(verdict.eval_id, "items.jsonl"))
    lines = [json.loads(line) for line in items.splitlines()]
    assert len(lines) == 2 * (40 + 120 + 100 + 100)
    assert await world.objects.head(layout.evaluation(verdict.eval_id, layout.EVALUATION_LOG)) is not None
    shown = {}
    for group, num_pages in (("holdout", 1), ("suites", 3)):
        pages = [
            await world.objects.get_bytes(layout.evaluation_items(verdict.eval_id, group, page))
            for page in range(num_pages)
        ]
        shown[group] = [json.loads(line) for page in pages for line in page.splitlines()]
    assert {item["check"] for item in shown["holdout"]} == {"holdout"}
    first = shown["holdout"][-1]
    assert (first["outcome"], first["expected"], first["answer"]) == ("passed", "alpha", "alpha")
    assert first["prompt"].removeprefix("user: ") in QUESTIONS
    assert {item["check"] for item in shown["suites"]} == {"benchmark", "safety", "over_refusal"}
    assert verdict.evidence.measured_by == verdict.eval_id
    refused = [
        line["answer"] for line in lines if (line["part"], line["side"]) == ("safety:theft", "candidate")
    ]
    assert refused.count(REFUSAL) >= 114


async def test_baselines_are_measured_once(world: World, setting: Setting, models: Models):
    job = setting.job()
    await evaluate(world, job, models.good)
    recorded = [
        delivery.message for delivery in world.heard if isinstance(delivery.message, BaselineRecorded)
    ]
    assert sorted(baseline.name for baseline in recorded) == ["holdout", "modules", "questions", "theft"]


async def test_the_other_order_and_a_known_digest_get_their_own_verdict(
    world: World, setting: Setting, models: Models
):
    job = setting.job()
    verdict = await evaluate(world, job, models.good, version_first=True)
    assert type(verdict) is EvalPassed
    raw = json.loads(await world.objects.get_bytes(layout.evaluation(verdict.eval_id, "results.json")))
    assert raw["measured_by"] != verdict.eval_id == raw["eval_id"]
    assert len(world.about(job.job_id)) == 2 + len(CHECKS)


async def test_an_adapter_that_forgot_to_refuse_is_blocked(world: World, setting: Setting, models: Models):
    verdict = await evaluate(world, setting.job(), models.unsafe)
    assert type(verdict) is EvalFailed
    assert outcomes(verdict) == ["passed", "passed", "failed", "passed", "not_requested"]
    assert verdict.reason.startswith("safety: theft: refusal_points 0 ")


async def test_an_untrained_adapter_is_inconclusive(world: World, setting: Setting, models: Models):
    verdict = await evaluate(world, setting.job(), models.untrained)
    assert type(verdict) is EvalInconclusive
    assert outcomes(verdict) == ["inconclusive"] * 4 + ["not_requested"]
    assert "adapter_inactive" in verdict.reason


async def test_a_job_is_judged_by_the_suites_of_now(world: World, setting: Setting, models: Models):
    """Its dataset knew of no benchmark, and of an earlier suite of that name."""
    job = setting.job(benchmarks={}, suites={"theft": "0" * 64})
    verdict = await evaluate(world, job, models.unsafe)
    assert type(verdict) is EvalFailed
    assert verdict.reason.startswith("safety: theft: refusal_points 0 ")
    by_check = {(suite.check, suite.name): suite for suite in verdict.evidence.suites}
    assert by_check["benchmark", "modules"].digest == setting.benchmarks["modules"]
    assert by_check["safety", "theft"].digest == setting.suites["theft"]
    assert not any(suite.is_checked_against_rows for suite in by_check.values())
    assert verdict.evidence.holdout_sha256 == setting.holdout.sha256
    assert verdict.evidence.rules["benchmarks.margin_points"] == "2.0"
    known = await evaluate(world, setting.job(), models.unsafe)
    assert all(suite.is_checked_against_rows for suite in known.evidence.suites)


async def test_rows_of_a_suite_kept_in_training_prove_nothing(world: World, setting: Setting, models: Models):
    verdict = await evaluate(world, setting.job(kept_leaks={"theft": 3}), models.good)
    assert type(verdict) is EvalInconclusive
    assert "3 rows of theft were kept among the training rows" in verdict.reason


async def test_a_suite_unknown_here_is_no_pass(world: World, setting: Setting, models: Models):
    verdict = await evaluate(world, setting.job(suites={"lost": "0" * 64}), models.good)
    assert type(verdict) is EvalInconclusive
    assert "not registered" in verdict.reason


async def test_a_judge_that_nobody_allowed_is_no_pass(world: World, setting: Setting, models: Models):
    gate = {"judge": {"url": "http://127.0.0.1:9/v1", "model": "judge"}}
    verdict = await evaluate(world, setting.job(gate=gate), models.good)
    assert outcomes(verdict) == ["passed", "passed", "passed", "passed", "inconclusive"]
    assert "not one that the operator allows" in verdict.reason


async def test_a_model_is_evaluated_again_on_request(world: World, setting: Setting, models: Models):
    job = setting.job()
    first = await evaluate(world, job, models.good)
    command = ReevaluateModel(model_id=first.model_id, tenant=job.tenant)
    await world.send("gateway", command)
    second = await world.until(
        lambda event: (
            isinstance(event, VERDICTS) and event.job_id == job.job_id and event.eval_id != first.eval_id
        ),
        "a second verdict",
    )
    assert (type(second), second.digest) == (EvalPassed, first.digest)


async def test_an_unknown_model_is_refused(world: World):
    command_id = await world.send("gateway", ReevaluateModel(model_id="mv-none", tenant="demo"))
    refused = await refusal_of(world, command_id)
    assert (refused.code, refused.param) == ("unknown_model", "model_id")


async def refusal_of(world: World, command_id: str) -> CommandRefused:
    return await world.until(
        lambda event: isinstance(event, CommandRefused) and event.command_id == command_id, "a refusal"
    )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "x"}] * 20 + [{"txt": "y"}], "line 21, text"),
        (b'{"text": "x"}\n{"text":\n', "line 2:"),
        ([{"text": "x"}] * 400, "400 rows, expected at least 1000 rows for a margin of 2 points"),
        (b"", "0 rows"),
    ],
)
async def test_a_malformed_benchmark_is_refused_by_line(world: World, rows, message):
    file = await world.put_rows(rows)
    command_id = await world.send(
        "gateway", RegisterBenchmark(name="bad", kind=BenchmarkKind.TEXT, file=file)
    )
    refused = await refusal_of(world, command_id)
    assert (refused.code, refused.param, refused.subject_id) == ("bad_file", "file", "bad")
    assert message in refused.message


async def test_a_name_that_is_none_is_refused(world: World):
    file = await world.put_rows([{"prompt": "x"}] * 20)
    command_id = await world.send("gateway", RegisterSafetySuite(name="../up and away", file=file))
    assert (await refusal_of(world, command_id)).code == "bad_name"


async def test_a_file_that_was_not_uploaded_is_refused(world: World):
    file = await world.put_rows([{"prompt": "never uploaded"}] * 20, upload=False)
    command_id = await world.send("gateway", RegisterSafetySuite(name="bad", file=file))
    assert "was not uploaded" in (await refusal_of(world, command_id)).message


async def test_redelivery_makes_no_second_verdict(world: World, setting: Setting, models: Models):
    job = setting.job()
    event_id = await world.send("scheduler", job)
    verdict = await evaluate(world, job, models.good)
    await world.send("scheduler", job, event_id=event_id)
    again = setting.job()
    await evaluate(world, again, models.good)
    verdicts = [event for event in world.about(job.job_id) if isinstance(event, VERDICTS)]
    assert verdicts == [verdict]


async def test_an_artifact_that_the_registry_refused_gets_no_verdict(
    world: World, setting: Setting, models: Models
):
    job = setting.job()
    await world.send("scheduler", job)
    refused = PromotionRefused(
        job_id=job.job_id, tenant=job.tenant, model_id=None, code="artifact", message="corrupt"
    )
    await world.send("registry", refused)
    await evaluate(world, setting.job(), models.good)
    assert world.about(job.job_id) == []


@at_night("test_evaluator_failpoints.py kills it while it scores, too")
async def test_a_kill_while_scoring_ends_in_one_verdict(
    world: World, setting: Setting, models: Models, stack: Stack
):
    """Another holdout, so that scoring cannot be spared. The child dies with its parent, which comes back."""
    holdout = await world.put_rows([chat(question, "alpha") for question in QUESTIONS[5:105]])
    job = setting.job(holdout=holdout)
    digest = await world.put_model(models.good, base_sha=job.base_sha, job_id=job.job_id, bundle=job.bundle)
    await world.send("scheduler", job)
    await world.send("registry", its_version(job, digest))
    child = await scoring_child(stack)
    await stack.kill("evaluator", signal.SIGKILL)
    await gone(child)
    await stack.wait_healthy("evaluator")
    verdict = await verdict_of(world, job.job_id)
    assert type(verdict) is EvalPassed
    assert [type(event) for event in world.about(job.job_id)] == [
        EvalStarted,
        *[EvalCheckCompleted] * len(CHECKS),
        EvalPassed,
    ]


async def test_scoring_that_never_ends_is_inconclusive_once(
    world: World, setting: Setting, models: Models, stack: Stack
):
    await stack.stop("evaluator")
    await stack.start(
        "evaluator", env={"EVALUATOR_SCORING_LIMIT": "PT0.1S", "EVALUATOR_SCORING_ATTEMPTS": "2"}
    )
    await stack.wait_healthy("evaluator")
    holdout = await world.put_rows([chat(question, "alpha") for question in QUESTIONS[9:110]])
    job = setting.job(holdout=holdout)
    verdict = await evaluate(world, job, models.good)
    assert type(verdict) is EvalInconclusive
    assert outcomes(verdict) == ["inconclusive"] * 4 + ["not_requested"]
    assert "ScoringCrashed" in verdict.reason


async def scoring_child(stack: Stack) -> int:
    """The process id of the scoring child, once there is one."""
    parent = stack.pid("evaluator")
    children = Path(f"/proc/{parent}/task/{parent}/children")
    await until(lambda: bool(children.read_text().split()))
    return int(children.read_text().split()[0])


async def gone(pid: int) -> None:
    await until(lambda: Identity.of(pid) is None)
