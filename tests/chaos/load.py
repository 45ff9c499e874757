"""Users at work: jobs submitted, cancelled, paused, resumed and taken back, models promoted, deployed, rolled back.

Seeded. What a user asks goes through HTTP, and is asked again where no answer came; what an operator asks goes
through Kafka. A refusal is an answer.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from deploy.local.stack import Stack
from schemas.artifacts import files_digest
from schemas.lifecycle import TERMINAL
from schemas.node import PreemptNode
from shared.messaging.kafka import KafkaFailed
from shared.messaging.login import Login
from shared.messaging.reader import send
from tests.chaos.trainer import RUINOUS_RATE, adapter_files, entry, state_after
from tests.e2e import material
from tests.tiny_model import build_tiny_model
from tests.waiting import PATIENCE_SECONDS

BASE = "tiny"
SLOTS = ("support", "search", "drafts")
ROWS = 200
EPOCHS = (10, 30, 90)
MAX_PREEMPTIONS = 2
"""Of one job; from the third on the scheduler lets it wait for minutes."""
ONE_BY_ONE = """
import json, sys
from cli.app import app
sys.exit(any(app(words, standalone_mode=False) for words in json.loads(sys.argv[1])))"""
"""Ends with 1 after the first command of `retune` that fails."""
JOBS = """
    SELECT id, state, config_hash, spec -> 'metadata' ->> 'number' AS number,
           (spec -> 'recipe' ->> 'learning_rate')::float AS learning_rate FROM scheduler.job"""
MODELS = """
    SELECT v.model_id, v.job_id, v.digest, v.stage, v.bundle_step, j.config_hash, j.state,
           (j.spec -> 'recipe' ->> 'learning_rate')::float AS learning_rate
      FROM registry.model_version v JOIN scheduler.job j ON j.id = v.job_id"""


class NoAnswer(Exception):
    """Nobody answered within the user's patience."""


@dataclass
class Load:
    stack: Stack
    seed: int
    max_open: int
    """Jobs under way at a time."""
    did: Counter[str] = field(default_factory=Counter)
    accepted: dict[str, str] = field(default_factory=dict)
    """Number of a submission -> the job's id that was answered."""
    gateways: tuple[str, ...] = ()
    """Where they serve; the next one is asked where a line breaks. Else the one that operators ask."""
    preempted: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        env = self.stack.operator_env()
        self._random = random.Random(self.seed)
        self._gateways = self.gateways or (env["RETUNE_BASE_URL"],)
        self._client = httpx.AsyncClient(
            base_url=self._gateways[0],
            headers={"authorization": f"Bearer {env['RETUNE_API_KEY']}"},
            timeout=20.0,
        )
        self._admin = Login(self.stack.kafka_bootstrap, "admin", self.stack.kafka_password("admin"))
        self._files: list[str] = []
        self._submitted = 0

    async def prepare(self, folder: Path) -> None:
        """A base model, a benchmark, suites of prompts and some training files."""
        base = await asyncio.to_thread(build_tiny_model, folder / "base", text=material.all_text())
        benchmark = material.write_jsonl(folder / "benchmark.jsonl", material.benchmark_rows())
        suite = material.write_jsonl(folder / "suite.jsonl", material.suite_rows())
        benign = material.write_jsonl(folder / "benign.jsonl", material.benign_rows())
        await asyncio.to_thread(
            self.retune,
            ("models", "register-base", BASE, str(base)),
            ("data", "register-benchmark", "spring", str(benchmark), *material.BENCHMARK_OPTIONS),
            ("data", "register-safety-suite", "harm", str(suite)),
            ("data", "register-safety-suite", "colours", str(benign), "--benign"),
        )
        for number in range(2):
            rows = material.colour_rows(material.THINGS[number * ROWS : (number + 1) * ROWS])
            path = material.write_jsonl(folder / f"train-{number}.jsonl", rows)
            answer = await self._client.post(
                "/files", files={"file": (path.name, path.read_bytes())}, data={"purpose": "fine-tune"}
            )
            self._files.append(answer.raise_for_status().json()["id"])

    async def run(self, seconds: float) -> None:
        """Act for so long."""
        ends = time.monotonic() + seconds
        await self.run_until(lambda: time.monotonic() >= ends)

    async def run_until(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            await self._act()
            await asyncio.sleep(self._random.uniform(0.1, 0.6))

    async def finish(self, *, within_seconds: float) -> None:
        """Nobody asks for anything new; what is paused is resumed, until every job has ended."""
        ends = time.monotonic() + within_seconds
        while time.monotonic() < ends:
            going = [job for job in await self._jobs() if job["retune"]["state"] not in TERMINAL]
            if not going:
                return
            for job in going:
                if job["retune"]["state"] == "paused":
                    await self._command("resume", job)
            await asyncio.sleep(1.0)

    async def close(self) -> None:
        await self._client.aclose()

    @property
    def changes(self) -> int:
        """Commands that were accepted."""
        return sum(count for outcome, count in self.did.items() if outcome.endswith((": done", ": sent")))

    async def problems(self, pool: asyncpg.Pool) -> list[str]:
        """What users can complain of once it is at rest."""
        jobs = await pool.fetch(JOBS)
        models = await pool.fetch(MODELS)
        return [*self._lost_or_doubled(jobs), *_wrong_models(models)]

    def _lost_or_doubled(self, jobs: list[Any]) -> list[str]:
        """One job for each submission, whatever the line did to the answer."""
        by_number = Counter(row["number"] for row in jobs)
        known = {row["id"] for row in jobs}
        doubled = [
            f"submission {number} made {count} jobs" for number, count in by_number.items() if count > 1
        ]
        lost = [
            f"job {each} was answered and is not there"
            for each in self.accepted.values()
            if each not in known
        ]
        return doubled + lost

    async def _act(self) -> None:
        actions: tuple[tuple[int, Callable[[], Awaitable[str]]], ...] = (
            (10, self._submit),
            (2, self._cancel),
            (3, self._pause),
            (4, self._resume),
            (3, self._preempt),
            (4, self._promote),
            (4, self._deploy),
            (2, self._roll_back),
            (1, self._undeploy),
        )
        (act,) = self._random.choices([each for _, each in actions], [weight for weight, _ in actions])
        try:
            outcome = await act()
        except NoAnswer:
            outcome = "unanswered"
        self.did[f"{act.__name__.strip('_')}: {outcome}"] += 1

    async def _submit(self) -> str:
        open_jobs = [job for job in await self._jobs() if job["retune"]["state"] not in TERMINAL]
        if len(open_jobs) >= self.max_open:
            return "enough under way"
        self._submitted += 1
        number = f"{self.seed}-{self._submitted}"
        body = self._body(number)
        answer = await self._ask("POST", "/fine_tuning/jobs", json=body, headers={"Idempotency-Key": number})
        if answer.is_success:
            self.accepted[number] = answer.json()["id"]
        return _word(answer)

    def _body(self, number: str) -> dict[str, Any]:
        source = self._random
        is_ruinous = source.random() < 0.15
        rate = source.uniform(RUINOUS_RATE, 0.9) if is_ruinous else source.uniform(1e-5, 1e-3)
        return {
            "model": BASE,
            "training_file": source.choice(self._files),
            "suffix": "chaos",
            "metadata": {"number": number},
            "retune": {
                "recipe": {
                    "lora": {"rank": 4},
                    "learning_rate": round(rate, 9),
                    "num_epochs": source.choice(EPOCHS),
                    "batch_size": 1,
                    "checkpoint": {"every_steps": source.choice((100, 500)), "every_seconds": 3600},
                },
                "resources": {"grace_seconds": 8},
                "policy": {"near_duplicates": "keep", "max_seq_length": 128},
                "auto_deploy": source.random() < 0.5,
            },
        }

    async def _cancel(self) -> str:
        return await self._on_one("cancel", lambda state: state not in TERMINAL)

    async def _pause(self) -> str:
        return await self._on_one("pause", lambda state: state in ("running", "provisioning", "queued"))

    async def _resume(self) -> str:
        return await self._on_one("resume", lambda state: state == "paused")

    async def _on_one(self, command: str, is_fit: Callable[[str], bool]) -> str:
        fit = [job for job in await self._jobs() if is_fit(job["retune"]["state"])]
        return await self._command(command, self._random.choice(fit)) if fit else "nobody to ask it of"

    async def _command(self, command: str, job: dict[str, Any]) -> str:
        return _word(await self._ask("POST", f"/fine_tuning/jobs/{job['id']}/{command}"))

    async def _preempt(self) -> str:
        running = [job["id"] for job in await self._jobs() if job["retune"]["state"] == "running"]
        fit = [job_id for job_id in running if self.preempted[job_id] < MAX_PREEMPTIONS]
        if not fit:
            return "nobody to ask it of"
        job_id = self._random.choice(fit)
        self.preempted[job_id] += 1
        notice = self._random.choice((0.0, 2.0, 8.0))
        try:
            await send(
                self._admin, PreemptNode(node_id=f"job:{job_id}", notice_seconds=notice), writer="admin"
            )
        except (KafkaFailed, OSError, TimeoutError):
            return "unanswered"
        return "sent"

    async def _promote(self) -> str:
        staged = await self._models("staging")
        if not staged:
            return "nobody to ask it of"
        return _word(await self._ask("POST", f"/models/{self._random.choice(staged)}/promote"))

    async def _deploy(self) -> str:
        """Mostly of what may be; the registry refuses the rest."""
        is_fair = self._random.random() < 0.8
        known = await self._models("production") if is_fair else await self._models("dev", "staging")
        if not known:
            return "nobody to ask it of"
        slot = {"slot": self._random.choice(SLOTS)}
        return _word(await self._ask("POST", f"/models/{self._random.choice(known)}/deploy", json=slot))

    async def _roll_back(self) -> str:
        return _word(await self._ask("POST", f"/deployments/{self._random.choice(SLOTS)}/rollback"))

    async def _undeploy(self) -> str:
        return _word(await self._ask("DELETE", f"/deployments/{self._random.choice(SLOTS)}"))

    async def _jobs(self) -> list[dict[str, Any]]:
        answer = await self._ask("GET", "/fine_tuning/jobs", params={"limit": 100})
        return list(answer.json()["data"]) if answer.is_success else []

    async def _models(self, *stages: str) -> list[str]:
        answer = await self._ask("GET", "/models")
        if not answer.is_success:
            return []
        ours = [model for model in answer.json()["data"] if model["retune"].get("stage") in stages]
        return [model["id"] for model in ours]

    async def _ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Again until somebody answers: a submission has its key, and the other commands may come twice."""
        ends = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < ends:
            try:
                answer = await self._client.request(method, path, **options)
            except httpx.TransportError:
                self.did["line broken"] += 1
                self._ask_the_next()
            else:
                if answer.status_code < 500:
                    return answer
                self.did[f"answered {answer.status_code}"] += 1
                if method != "GET" and "Idempotency-Key" not in options.get("headers", {}):
                    return answer
            await asyncio.sleep(0.5)
        raise NoAnswer(f"{method} {path}")

    def _ask_the_next(self) -> None:
        self._gateways = (*self._gateways[1:], self._gateways[0])
        self._client.base_url = httpx.URL(self._gateways[0])

    def retune(self, *commands: Sequence[str]) -> None:
        """One after the other, in one process."""
        done = subprocess.run(
            [sys.executable, "-c", ONE_BY_ONE, json.dumps(commands)],
            env=os.environ | self.stack.operator_env(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"retune {commands}: {done.returncode}\n{done.stderr}"


def _wrong_models(models: list[Any]) -> list[str]:
    """Every adapter is what an undisturbed run would have ended with, and no ruined one got out of `dev`."""
    faults = []
    for row in models:
        files = adapter_files(
            state_after(row["config_hash"], row["bundle_step"]), learning_rate=row["learning_rate"]
        )
        entries = tuple(entry(path.removeprefix("model/"), content) for path, content in files.items())
        if files_digest(entries) != row["digest"]:
            faults.append(
                f"{row['model_id']} of step {row['bundle_step']} has digest {row['digest'][:16]}, "
                f"an undisturbed run {files_digest(entries)[:16]}"
            )
        if row["learning_rate"] >= RUINOUS_RATE and row["stage"] != "dev":
            faults.append(f"{row['model_id']} is ruined and in stage {row['stage']}")
    return faults


def _word(answer: httpx.Response) -> str:
    return "done" if answer.is_success else f"refused with {answer.status_code}"
