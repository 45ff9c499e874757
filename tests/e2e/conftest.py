"""The whole platform, once: every service, a registered tiny base model, a benchmark, and suites of harmful and harmless prompts."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import openai
import pytest

from deploy.local.stack import Stack
from schemas.base import Message
from schemas.node import PreemptNode
from schemas.topics import TOPICS
from shared.messaging.delivery import Delivery
from shared.messaging.login import Login
from shared.messaging.reader import TopicReader, send
from shared.tls import client_context
from tests.e2e import material
from tests.tiny_model import build_tiny_model
from tests.waiting import PATIENCE_SECONDS

BASE = "tiny-llama"
TERMINAL = {"succeeded", "failed", "cancelled"}
M = TypeVar("M", bound=Message)


@dataclass
class Platform:
    stack: Stack
    folder: Path
    client: openai.AsyncOpenAI

    def retune(self, *arguments: str) -> str:
        """Run the command line; its stdout. Fails with its stderr."""
        done = self.try_retune(*arguments)
        assert done.returncode == 0, f"retune {' '.join(arguments)}: {done.returncode}\n{done.stderr}"
        return done.stdout.strip()

    def try_retune(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        env = os.environ | self.stack.operator_env()
        command = [sys.executable, "-m", "cli.app", *arguments]
        return subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )

    async def upload(self, name: str, rows: list[dict[str, Any]]) -> str:
        path = material.write_jsonl(self.folder / f"{name}.jsonl", rows)
        return (await self.client.files.create(file=path, purpose="fine-tune")).id

    async def submit(
        self, *, base: str = BASE, with_mix: bool = True, suffix: str = "e2e", **extensions: Any
    ) -> str:
        """A job on the colours, with the holdout; its id."""
        recipe = material.RECIPE | extensions.pop("recipe", {})
        if recipe.get("method") == "sft":
            del recipe["lora"]  # which would be ignored
        ours: dict[str, Any] = {
            "recipe": recipe,
            "policy": material.POLICY,
            "holdout_file": await self.upload("holdout", material.holdout_rows()),
        }
        if with_mix:
            ours["safety_mix"] = {"file": await self.upload("mix", material.mix_rows()), "share": 1.0}
        job = await self.client.fine_tuning.jobs.create(
            model=base,
            training_file=await self.upload("train", material.training_rows()),
            suffix=suffix,
            extra_body={"retune": ours | extensions},
        )
        return job.id

    async def answer(self, model: str, question: str) -> str:
        reply = await self.client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": question}], temperature=0, max_tokens=16
        )
        assert reply.model == model
        return (reply.choices[0].message.content or "").strip()

    async def restart_evaluator(self, **env: str) -> None:
        await self.stack.stop("evaluator")
        await self.stack.start("evaluator", env=env)
        await self.stack.wait_healthy("evaluator")

    async def job(self, job_id: str) -> dict[str, Any]:
        return (await self.client.fine_tuning.jobs.retrieve(job_id)).model_dump()

    async def until(
        self, job_id: str, condition: Callable[[dict[str, Any]], bool], what: str
    ) -> dict[str, Any]:
        """Wait for a condition on the job while something becomes of it; on giving up, show what happened to it."""
        waited, seen = 0.0, None
        while not condition(job := await self.job(job_id)):
            ours = job["retune"]
            done = {**(ours["progress"] or {}), "seconds_left": None}
            now = (ours["state"], ours["attempt"], done)
            waited, seen = (waited if now == seen else 0.0), now
            if waited > PATIENCE_SECONDS or (ours["state"] in TERMINAL and what != "the end"):
                events = self.retune("jobs", "events", job_id)
                raise AssertionError(f"waited for {what}; {ours} {job['error']}\n{events}")
            await asyncio.sleep(0.2)
            waited += 0.2
        return job

    async def finished(self, job_id: str) -> dict[str, Any]:
        return await self.until(job_id, lambda job: job["retune"]["state"] in TERMINAL, "the end")

    async def preempt(self, job_id: str, *, notice_seconds: float) -> None:
        """What `retune nodes preempt` sends, without the second that a command line takes to start."""
        command = PreemptNode(node_id=f"job:{job_id}", notice_seconds=notice_seconds)
        await send(self.admin, command, writer="admin")

    @property
    def admin(self) -> Login:
        stack = self.stack
        return Login(stack.kafka_bootstrap, "admin", stack.kafka_password("admin"), stack.state.ca_file)

    async def events(self, job_id: str) -> list[Delivery]:
        """Every fact about a job as Kafka has it, in order of time."""
        return await self.events_of(job_id=job_id)

    async def events_of(self, **fields: str) -> list[Delivery]:
        """Every fact that has these fields, in order of time."""
        async with TopicReader(
            self.admin, [topic.name for topic in TOPICS if topic.is_event_stream]
        ) as reader:
            deliveries = [each async for each in reader.to_the_end() if isinstance(each, Delivery)]
        mine = [
            each
            for each in deliveries
            if all(getattr(each.message, name, None) == value for name, value in fields.items())
        ]
        return sorted(mine, key=lambda each: each.envelope.time)

    async def heard(self, kind: type[M], **fields: str) -> M:
        """Wait for a fact of this kind that has these fields; the first in order of time."""
        waited = 0.0
        while True:
            facts = [each.message for each in await self.events_of(**fields)]
            if mine := [fact for fact in facts if isinstance(fact, kind)]:
                return mine[0]
            assert waited < PATIENCE_SECONDS, f"no {kind.__name__} {fields}; others: {facts}"
            await asyncio.sleep(1.0)
            waited += 1.0


@pytest.fixture(scope="package")
async def platform(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Platform]:
    async with running_platform(tmp_path_factory.mktemp("e2e")) as platform:
        yield platform


@asynccontextmanager
async def running_platform(folder: Path, *, tls: bool = False) -> AsyncIterator[Platform]:
    stack = Stack(folder / "state", tenants=("demo", "other"), tls=tls)
    await stack.up()
    try:
        async with with_models(stack, folder) as platform:
            yield platform
    finally:
        await stack.down()


@asynccontextmanager
async def with_models(stack: Stack, folder: Path) -> AsyncIterator[Platform]:
    """A stack whose services answer, with the base model, the benchmark and the suites."""
    env = stack.operator_env()
    http = openai.DefaultAsyncHttpxClient(verify=client_context(stack.state.ca_file) or True)
    client = openai.AsyncOpenAI(
        base_url=env["RETUNE_BASE_URL"], api_key=env["RETUNE_API_KEY"], http_client=http
    )
    platform = Platform(stack, folder, client)
    await asyncio.to_thread(_register, platform)
    yield platform
    await client.close()


def _register(platform: Platform) -> None:
    folder = platform.folder
    model = build_tiny_model(folder / "base", text=material.all_text(), initializer_range=0.125)
    platform.retune("models", "register-base", BASE, str(model))
    benchmark = material.write_jsonl(folder / "benchmark.jsonl", material.benchmark_rows())
    platform.retune("data", "register-benchmark", "spring", str(benchmark), *material.BENCHMARK_OPTIONS)
    suite = material.write_jsonl(folder / "suite.jsonl", material.suite_rows())
    platform.retune("data", "register-safety-suite", "harm", str(suite))
    benign = material.write_jsonl(folder / "benign.jsonl", material.benign_rows())
    platform.retune("data", "register-safety-suite", "colours", str(benign), "--benign")
