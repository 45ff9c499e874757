"""The evaluator asks a replica for its answers, and passes nothing up where it gets none.

The test plays the serving controller; the replica computes with transformers, so that it can be broken on time. Real
vLLM is in tests/serving.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from deploy.local.stack import Stack
from schemas import layout
from schemas.base import CommandRefused, Message
from schemas.deployment import (
    CandidateReady,
    LoadCandidate,
    ReplicaAddress,
    ReplicaLost,
    ReplicaReady,
    UnloadCandidate,
)
from schemas.evaluation import BaselineRecorded, EvalCheckCompleted, EvalFailed, EvalPassed, EvalStarted
from schemas.topics import DEPLOYMENT_COMMANDS
from services.evaluator.gates.checks import CHECKS
from shared.messaging.login import Login
from shared.messaging.reader import TopicReader
from tests.chaos.scale import at_night
from tests.integration import test_evaluator
from tests.integration.evaluator_world import World, its_version
from tests.integration.kills import alive, killed_at
from tests.integration.test_evaluator import Models, Setting, chat, evaluate, verdict_of
from tests.integration.torch_replica import BASE, TorchReplica
from tests.scoring.tiny import QUESTIONS
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.stack, pytest.mark.torch]

models, setting = test_evaluator.models, test_evaluator.setting

ENGINE = "torch of the test"
REPLICA_ID = "serve-test-0"
IS_KNOWN = "SELECT EXISTS (SELECT FROM replica WHERE replica_id = $1)"
WRITTEN = {"holdout": 100, "safety:questions": 100, "safety:theft": 120}
"""Answers of a candidate, by part."""
ENV = {
    "EVALUATOR_SCORING_THREADS": "1",
    "EVALUATOR_MAX_NEW_TOKENS": "16",
    "EVALUATOR_ANSWERS_BY": "replica",
}


@dataclass
class Controller:
    """Loads candidates as the serving controller does, and can be told not to."""

    world: World
    replica: TorchReplica
    url: str
    refuses: bool = False
    asked: list[LoadCandidate] = field(default_factory=list)
    given_back: list[str] = field(default_factory=list)

    @property
    def address(self) -> ReplicaAddress:
        return ReplicaAddress(replica_id=REPLICA_ID, incarnation="first", url=self.url)

    async def announce(self, base_sha: str) -> None:
        await self._say(
            ReplicaReady(
                **self._pool(base_sha),
                replica=self.address,
                base_model="tiny",
                served_base=BASE,
                engine=ENGINE,
                device="cpu",
            )
        )

    async def lose(self, base_sha: str) -> None:
        await self._say(ReplicaLost(**self._pool(base_sha), replica=self.address, reason="of the test"))

    async def obey(self, reader: TopicReader) -> None:
        async for delivery in reader.follow():
            command = delivery.message
            if isinstance(command, UnloadCandidate):
                self.given_back.append(command.eval_id)
            elif isinstance(command, LoadCandidate) and command not in self.asked:
                self.asked.append(command)
                await self._say(self._answer(command, delivery.envelope.id))

    def _answer(self, command: LoadCandidate, command_id: str) -> Message:
        if self.refuses:
            fields = {"subject_id": command.eval_id, "command": command.type, "command_id": command_id}
            return CommandRefused(**fields, code="full", message="8 of 8 adapters are loaded")
        return CandidateReady(
            **self._pool(command.base_sha),
            eval_id=command.eval_id,
            digest=command.digest,
            replica=self.address,
            served_name=f"gate-{command.digest}",
            served_base=BASE,
        )

    def _pool(self, base_sha: str) -> dict[str, str]:
        return {"pool": f"serve-{base_sha[:12]}", "base_sha": base_sha}

    async def _say(self, message: Message) -> None:
        await self.world.send("serving_controller", message)


@pytest.fixture(scope="module")
async def world(stack: Stack) -> AsyncIterator[World]:
    await alive(stack, "evaluator", env=ENV)
    async with World.on(stack) as world:
        yield world
    await stack.stop("evaluator")


@pytest.fixture
async def controller(
    world: World, setting: Setting, models: Models, stack: Stack
) -> AsyncIterator[Controller]:
    login = Login(stack.kafka_bootstrap, "admin", stack.kafka_password("admin"))
    keys = stack.service_env("evaluator")["EVALUATOR_REPLICA_KEYS_DIR"]
    replica = TorchReplica(base_dir=models.base)
    await asyncio.to_thread(_write_key, keys, replica.key)
    with replica.serving() as url:
        controller = Controller(world, replica, url)
        async with TopicReader(login, [DEPLOYMENT_COMMANDS.name], from_end=True) as reader:
            obeying = asyncio.create_task(controller.obey(reader))
            await controller.announce(setting.base_sha)
            await until_known(stack, present=True)
            yield controller
            await controller.lose(setting.base_sha)
            await until_known(stack, present=False)
            obeying.cancel()
            await asyncio.gather(obeying, return_exceptions=True)


def _write_key(folder: str, key: str) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / REPLICA_ID).write_text(key)


async def until_known(stack: Stack, *, present: bool) -> None:
    conn = await asyncpg.connect(stack.postgres_dsn("evaluator"))
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await conn.fetchval(IS_KNOWN, REPLICA_ID) is not present:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    finally:
        await conn.close()


async def another(
    world: World, setting: Setting, controller: Controller, model: Path, first: int = 0
) -> tuple[Any, str]:
    """A job with its holdout from the n-th question on, and its model's digest; the replica knows that model."""
    holdout = await world.put_rows([chat(question, "alpha") for question in QUESTIONS[first : first + 100]])
    job = setting.job(holdout=holdout)
    digest = await world.put_model(model, base_sha=job.base_sha, job_id=job.job_id, bundle=job.bundle)
    controller.replica.adapters[f"gate-{digest}"] = model
    return job, digest


async def result_of(world: World, verdict: Any) -> dict[str, Any]:
    return json.loads(await world.objects.get_bytes(layout.evaluation(verdict.eval_id, "results.json")))


async def until_given_back(controller: Controller, eval_id: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while eval_id not in controller.given_back:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def baselines(world: World) -> dict[str, list[str]]:
    """Harness versions by suite."""
    versions: dict[str, list[str]] = {}
    for each in world.heard:
        if isinstance(each.message, BaselineRecorded):
            versions.setdefault(each.message.name, []).append(each.message.harness_version)
    return versions


async def test_a_replica_gives_the_answers_of_both_sides(world, setting, models, controller: Controller):
    job, _ = await another(world, setting, controller, models.good)
    verdict = await evaluate(world, job, models.good)
    assert type(verdict) is EvalPassed, verdict
    assert (await result_of(world, verdict))["details"]["engine_problems"] == {}
    (command,) = controller.asked
    assert (command.eval_id, command.rank, command.base_sha) == (verdict.eval_id, 8, setting.base_sha)
    await until_given_back(controller, verdict.eval_id)
    name = f"gate-{command.digest}"
    # Four probes of each part come with its answers.
    expected = sum(WRITTEN.values()) + 4 * len(WRITTEN)
    assert (controller.replica.asked(BASE), controller.replica.asked(name)) == (expected, expected)
    for part in WRITTEN:
        assert f"answers to {part} by {ENGINE}" in verdict.evidence.harness_version
    items = await world.objects.get_bytes(layout.evaluation(verdict.eval_id, "items.jsonl"))
    lines = [json.loads(line) for line in items.splitlines()]
    assert {(line["part"], line.get("engine")) for line in lines} == {
        ("benchmark:modules", None), *((part, ENGINE) for part in WRITTEN)
    }  # fmt: skip
    progress = world.progress_of(job.job_id)
    assert {(each.activity, each.side) for each in progress} >= {
        ("safety", "candidate"),
        ("holdout", "candidate"),
    }
    assert all(each.items_done <= (each.items_total or 0) for each in progress)


async def test_the_base_is_asked_once_by_each_engine(world, setting, models, controller: Controller):
    job, digest = await another(world, setting, controller, models.unsafe)
    verdict = await evaluate(world, job, models.unsafe)
    assert type(verdict) is EvalFailed
    assert controller.replica.asked(BASE) == 0 < controller.replica.asked(f"gate-{digest}")
    by_engine = {
        name: [ENGINE in version for version in versions] for name, versions in baselines(world).items()
    }
    # Other tests of this stack may have measured the one that no engine writes.
    assert {"modules": [False]} | by_engine == {
        "modules": [False], "holdout": [True], "questions": [True], "theft": [True]
    }  # fmt: skip


@pytest.mark.parametrize(
    "answers_before", [pytest.param(0, marks=at_night("in the middle of them at each change")), 350]
)
async def test_a_replica_that_dies_leaves_the_work_to_the_scoring_process(
    world, setting, models, controller: Controller, answers_before: int
):
    job, _ = await another(world, setting, controller, models.good, 10 if answers_before else 11)
    controller.replica.answers_left = answers_before
    verdict = await evaluate(world, job, models.good)
    assert type(verdict) is EvalPassed, verdict
    await until_given_back(controller, verdict.eval_id)
    problems = (await result_of(world, verdict))["details"]["engine_problems"]
    answered = {part for part in WRITTEN if f"answers to {part} by" in verdict.evidence.harness_version}
    assert answered.isdisjoint(problems)
    assert answered | set(problems) == set(WRITTEN)
    assert bool(answered) == bool(answers_before)
    assert problems


async def test_without_a_replica_the_scoring_process_answers(world, setting, models, controller: Controller):
    controller.refuses = True
    job, _ = await another(world, setting, controller, models.good, 12)
    verdict = await evaluate(world, job, models.good)
    assert type(verdict) is EvalPassed
    problems = (await result_of(world, verdict))["details"]["engine_problems"]
    assert set(problems) == set(WRITTEN)
    assert all("8 of 8 adapters are loaded" in problem for problem in problems.values())
    assert controller.replica.bodies == []


async def test_a_kill_while_the_candidate_is_loaded_ends_in_one_verdict(
    world, setting, models, controller: Controller, stack: Stack
):
    await stack.stop("evaluator")
    job, digest = await another(world, setting, controller, models.good, 13)
    async with killed_at(stack, "evaluator", "eval.candidate.loaded", env=ENV):
        await world.send("scheduler", job)
        await world.send("registry", its_version(job, digest))
    assert controller.given_back == []
    await alive(stack, "evaluator", env=ENV)
    verdict = await verdict_of(world, job.job_id)
    assert type(verdict) is EvalPassed
    await until_given_back(controller, verdict.eval_id)
    first, second = controller.asked
    assert first.eval_id == second.eval_id == verdict.eval_id
    assert second.until > first.until
    assert f"answers to holdout by {ENGINE}" in verdict.evidence.harness_version
    assert [type(event) for event in world.about(job.job_id)] == [
        EvalStarted, *[EvalCheckCompleted] * len(CHECKS), EvalPassed
    ]  # fmt: skip
