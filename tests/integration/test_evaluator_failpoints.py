"""An evaluator that dies while it scores and before it tells: one verdict, with every check, all the same."""

import hashlib
from collections.abc import AsyncIterator

import pytest

from deploy.local.stack import Stack
from schemas.evaluation import EvalCheckCompleted, EvalFailed, EvalInconclusive, EvalPassed, EvalStarted
from services.evaluator.gates.checks import CHECKS
from tests.integration.evaluator_world import World, a_job, its_version
from tests.integration.kills import alive, killed_at
from tests.scoring.tiny import QUESTIONS, VOCABULARY, train_adapter
from tests.stored import put_base
from tests.tiny_model import build_tiny_model, template_text

pytestmark = [pytest.mark.stack, pytest.mark.crash_matrix, pytest.mark.torch]

ENV = {"EVALUATOR_SCORING_THREADS": "1", "EVALUATOR_MAX_NEW_TOKENS": "4"}


@pytest.fixture(scope="module")
async def world(stack: Stack) -> AsyncIterator[World]:
    async with World.on(stack) as world:
        yield world


def chat_message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


async def test_a_kill_while_scoring_or_before_the_verdict_ends_in_one_verdict(stack, world, tmp_path):
    base = build_tiny_model(tmp_path / "base", text=VOCABULARY)
    adapter = train_adapter(base, tmp_path / "adapter", [(QUESTIONS[0], "alpha")], steps=1)
    rows = [
        {"messages": [chat_message("user", text), chat_message("assistant", "alpha")]}
        for text in QUESTIONS[:4]
    ]
    template = {"template_sha256": hashlib.sha256(template_text(base).encode()).hexdigest()}
    base_sha = await put_base(world.objects, base, **template)
    job = a_job(base_sha=base_sha, **template, holdout=await world.put_rows(rows))
    digest = await world.put_model(adapter, base_sha=base_sha, job_id=job.job_id, bundle=job.bundle)
    async with killed_at(stack, "evaluator", "eval.item.done", at_pass=3, env=ENV):
        await world.send("scheduler", job)
        await world.send("registry", its_version(job, digest))
    async with killed_at(stack, "evaluator", "eval.verdict.before", env=ENV):
        pass
    assert [type(event) for event in world.about(job.job_id)] == [EvalStarted]
    await alive(stack, "evaluator", env=ENV)
    verdict = await world.until(
        lambda event: (
            isinstance(event, (EvalPassed, EvalFailed, EvalInconclusive)) and event.job_id == job.job_id
        ),
        "the verdict",
    )
    assert [type(event) for event in world.about(job.job_id)] == [
        EvalStarted,
        *[EvalCheckCompleted] * len(CHECKS),
        type(verdict),
    ]
    [holdout] = [check for check in verdict.checks if check.check == "holdout"]
    assert holdout.criteria
    await stack.stop("evaluator")
