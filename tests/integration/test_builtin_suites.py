"""A new stack can judge, and says at submit what would keep a model from passing.

What `up` registers, once, and never over what an operator registered; what the gateway knows of gate and pools.
"""

import gzip
import hashlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import httpx
import pytest

from deploy.local.cli import _register_suites
from deploy.local.stack import Stack
from deploy.suites.registering import write
from schemas.base import FileRef
from schemas.evaluation import BenchmarkKind, BenchmarkRegistered
from schemas.job import JobSubmitted, RetryJob, SubmitJob
from schemas.model import AdaptersStale
from schemas.node import PoolCapacityChanged
from services.evaluator.decide.plan import suite_digest
from shared.clock import utc_now
from tests.architecture.source import ROOT
from tests.builders import a_sha
from tests.integration.gateway.world import World, mark, met
from tests.parquet import parquet_of
from tests.waiting import until

pytestmark = pytest.mark.stack

CHECKS = {"general": "benchmark", "refusals": "safety", "benign": "over_refusal"}


@pytest.fixture(scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """As `up` makes it, with the two services that registering needs."""
    folder = tmp_path_factory.mktemp("new")
    stack = Stack(folder, services=("gateway", "evaluator"), before_ready=_register_suites)
    await stack.up()
    yield stack
    await stack.down()


async def files_of_suites(stack: Stack) -> list[dict]:
    return await read(stack, "/admin/files?limit=100", key="RETUNE_ADMIN_KEY")


async def read(stack: Stack, path: str, *, key: str = "RETUNE_API_KEY") -> list[dict]:
    bearer = {"authorization": f"Bearer {stack.operator_env()[key]}"}
    async with httpx.AsyncClient(base_url=stack.url("gateway", "/v1"), headers=bearer) as client:
        return (await client.get(path)).json()["data"]


def run(stack: Stack, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**stack.operator_env(), "PATH": ""}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


async def test_a_stack_that_is_up_has_a_suite_for_every_check_that_needs_one(stack: Stack, tmp_path: Path):
    suites = {suite["name"]: suite for suite in await read(stack, "/suites")}
    assert {name: suite["check"] for name, suite in suites.items()} == CHECKS
    for path in write(tmp_path):
        assert suites[path.stem]["rows"] == len(path.read_text().splitlines())


async def test_no_tenant_can_read_what_they_ask(stack: Stack):
    assert await read(stack, "/files?limit=100") == []


async def test_what_is_registered_is_not_registered_again(stack: Stack):
    before = await read(stack, "/suites"), await files_of_suites(stack)
    assert len(before[1]) == len(CHECKS)
    again = run(stack, "deploy.suites")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert (await read(stack, "/suites"), await files_of_suites(stack)) == before


async def test_what_an_operator_registers_stays(stack: Stack, tmp_path: Path):
    own = tmp_path / "own.jsonl"
    own.write_text("".join(json.dumps({"prompt": f"How do I harm {n}?"}) + "\n" for n in range(150)))
    assert run(stack, "cli.app", "data", "register-safety-suite", "refusals", str(own)).returncode == 0

    async def is_shown() -> bool:
        return any(suite["rows"] == 150 for suite in await read(stack, "/suites"))

    await until(is_shown, "the operator's suite")
    assert run(stack, "deploy.suites").returncode == 0
    assert await registered(stack) == sha256(own)


async def test_a_published_task_is_registered_with_examples_of_its_own_split(stack: Stack, tmp_path: Path):
    """As people have both: gzip and Parquet. What is asked and what is shown is in the suite's digest."""
    asked, shown = tmp_path / "test.jsonl.gz", tmp_path / "dev.parquet"
    asked.write_bytes(gzip.compress("".join(json.dumps(mmlu(n)) + "\n" for n in range(400)).encode()))
    shown.write_bytes(parquet_of([mmlu(n) for n in range(1_000, 1_005)]))
    command = ("cli.app", "--json", "data", "register-benchmark", "mmlu", str(asked))
    command += ("--task", "mmlu", "--margin-points", "5", "--fewshot", str(shown))
    refused = run(stack, *command, "--num-fewshot", "6")
    assert refused.returncode == 1
    assert "anatomy has 5 rows, expected at least 6 examples" in refused.stderr
    assert run(stack, *command).returncode == 2
    done = run(stack, *command, "--num-fewshot", "5")
    assert done.returncode == 0, done.stderr
    fact = BenchmarkRegistered.model_validate_json(done.stdout)
    assert fact.examples is not None
    assert (fact.rows, fact.num_fewshot, fact.examples.filename) == (400, 5, "dev.parquet")
    assert fact.digest == suite_digest(fact.file, BenchmarkKind.MMLU, 5, "refusal", 5.0, fact.examples)
    db = await asyncpg.connect(stack.postgres_dsn("gateway"))
    needed = await db.fetch("SELECT DISTINCT sha256 FROM needed_bytes WHERE needed_by = 'benchmark mmlu'")
    await db.close()
    assert {row["sha256"] for row in needed} == {fact.file.sha256, fact.examples.sha256}


def mmlu(number: int) -> dict:
    choices = {"choices": ["one", "two", "three", "four"], "answer": number % 4}
    return {"question": f"Which is {number}?", "subject": "anatomy", **choices}


async def test_not_even_a_gateway_that_knows_of_no_suite_replaces_one(stack: Stack):
    """As after an upgrade: what was registered before the gateway listed suites is not in its list."""
    mine = await registered(stack)
    db = await asyncpg.connect(stack.postgres_dsn("gateway"))
    async with without_suites(db, "name = 'refusals'"):
        again = run(stack, "deploy.suites")
        assert (again.returncode, again.stderr) == (0, "")
        assert await registered(stack) == mine
    await db.close()


@asynccontextmanager
async def without_suites(db: asyncpg.Connection, condition: str) -> AsyncIterator[None]:
    """The gateway has not heard of these."""
    kept = await db.fetch(f"DELETE FROM suite WHERE {condition} RETURNING *")
    assert kept
    try:
        yield
    finally:
        placeholders = ", ".join(f"${number}" for number in range(1, len(kept[0]) + 1))
        await db.executemany(
            f"INSERT INTO suite VALUES ({placeholders})", [tuple(row.values()) for row in kept]
        )


async def registered(stack: Stack) -> str:
    """sha256 of the file of the newest suite `refusals`, as the evaluator keeps it."""
    db = await asyncpg.connect(stack.postgres_dsn("evaluator"))
    query = "SELECT file ->> 'sha256' FROM suite WHERE name = 'refusals' ORDER BY registered_at DESC LIMIT 1"
    digest = await db.fetchval(query)
    await db.close()
    return str(digest)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
async def world(stack: Stack) -> AsyncIterator[World]:
    async with met(stack) as world:
        yield world


HOLDOUT = b"".join(b'{"prompt": "%d", "completion": "x"}\n' % number for number in range(40))


async def submit(world: World, **ours: object) -> httpx.Response:
    file_id = (await world.upload())["id"]
    body = {"model": world.base_name, "training_file": file_id, "retune": ours}
    return await world.ask("POST", "/fine_tuning/jobs", json=body)


class TestAtSubmit:
    async def test_a_job_on_a_new_stack_is_taken_without_a_warning(self, world: World):
        answer = await submit(world)
        assert answer.status_code == 200, answer.text
        assert answer.json()["retune"]["warnings"] == []

    async def test_what_cannot_change_is_refused_by_name(self, world: World):
        small = (await world.upload(content=HOLDOUT))["id"]
        judge = {"url": "http://nowhere.test/v1", "model": "judge"}
        expected = [
            ({"gate": {"judge": judge}}, "retune.holdout_file", "holdout_missing"),
            ({"holdout_file": small}, "retune.holdout_file", "holdout_too_small"),
            ({"gate": {"holdout": {"metric": "perplexity"}}}, "retune.holdout_file", "holdout_missing"),
        ]
        for ours, param, code in expected:
            answer = await submit(world, **ours)
            assert answer.status_code == 400, ours
            assert (answer.json()["error"]["param"], answer.json()["error"]["code"]) == (param, code)
        enough = (await world.upload(content=HOLDOUT * 20))["id"]
        answer = await submit(world, holdout_file=enough, gate={"judge": judge})
        assert answer.json()["error"]["code"] == "judge_not_allowed"

    async def test_a_check_without_a_suite_is_refused_or_warned_of_as_asked(self, world: World):
        async with without_suites(world.db, "is_benchmark"):
            refused = await submit(world)
            assert refused.json()["error"]["code"] == "gate_cannot_pass"
            assert "retune data register-benchmark" in refused.json()["error"]["message"]
            taken = (await submit(world, allow_ungated=True)).json()
            (warning,) = taken["retune"]["warnings"]
            assert warning["code"] == "gate_cannot_pass"
            await self._is_warned_of_in_its_timeline(world, taken["id"], warning["message"])
            await self._is_refused_at_the_tenants_own_door(world)

    async def _is_warned_of_in_its_timeline(self, world: World, job_id: str, message: str) -> None:
        delivery = await world.heard(job_id, "SubmitJob")
        command = delivery.message
        submitted = JobSubmitted(
            job_id=job_id,
            tenant="demo",
            dataset_id=command.dataset_id,
            spec=command.spec,
            submitted_at=utc_now(),
        )
        await world.voices.say("scheduler", submitted)
        await until(lambda: world.is_consumed("job.events", job_id, 1), "JobSubmitted")
        events = (await world.ask("GET", f"/fine_tuning/jobs/{job_id}/events")).json()["data"]
        assert ("warn", message) in {(event["level"], event["message"]) for event in events}
        job = (await world.ask("GET", f"/fine_tuning/jobs/{job_id}")).json()
        assert [warning["message"] for warning in job["retune"]["warnings"]] == [message]

    async def _is_refused_at_the_tenants_own_door(self, world: World) -> None:
        file = await world.upload()
        ref = FileRef(file_id=file["id"], sha256=file["retune"]["sha256"], size_bytes=file["bytes"])
        spec = world.spec(training_file=ref)
        command = SubmitJob(job_id=f"ftjob-{mark()}", tenant="demo", dataset_id=f"ds-{mark()}", spec=spec)
        await world.command("demo", command)
        refused = (await world.heard(command.job_id, "CommandRefused")).message
        assert (refused.code, refused.param) == ("gate_cannot_pass", "spec.allow_ungated")

    async def test_a_job_that_no_pool_can_hold_is_refused_or_warned_of(self, world: World):
        pool = PoolCapacityChanged(
            pool="cpu-spot", capacity_type="spot", nodes=2, free=2, devices_per_node=1, price_per_hour="0.1"
        )
        await world.voices.say("provisioner", pool)
        await until(lambda: world.is_consumed("node.events", "cpu-spot", 1), "the pool")
        unknown = await submit(world, resources={"pool": "gpu-spot"})
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (400, "unknown_pool")
        assert unknown.json()["error"]["param"] == "retune.resources.pool"
        wide = await submit(world, resources={"devices_per_node": 8})
        assert (wide.status_code, wide.json()["error"]["code"]) == (400, "no_pool_holds")
        many = await submit(world, resources={"nodes": 3})
        (warning,) = many.json()["retune"]["warnings"]
        assert (many.status_code, warning["code"]) == (200, "no_pool_holds")

    async def test_a_base_that_changed_is_said_of_its_jobs_and_refused_to_their_retries(self, world: World):
        job_id = (await submit(world)).json()["id"]
        stale_sha, world.base_sha = world.base_sha, a_sha(f"{world.base_name} again")
        stale = AdaptersStale(base_model=world.base_name, stale_sha=stale_sha, new_sha=world.base_sha)
        await world.voices.say("registry", stale, world.registered_base())
        await until(lambda: world.is_consumed("model.events", world.base_name, 3), "the new files")
        job = (await world.ask("GET", f"/fine_tuning/jobs/{job_id}")).json()
        assert [warning["code"] for warning in job["retune"]["warnings"]] == ["stale_base"]
        retried = await world.ask("POST", f"/fine_tuning/jobs/{job_id}/retry")
        assert (retried.status_code, retried.json()["error"]["code"]) == (400, "stale_base")
        await world.command("demo", RetryJob(job_id=job_id, tenant="demo", new_job_id=f"ftjob-{mark()}"))
        assert (await world.heard(job_id, "CommandRefused")).message.code == "stale_base"
