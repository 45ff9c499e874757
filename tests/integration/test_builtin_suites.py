"""A new stack can judge: what `up` registers, once, and never over what an operator registered."""

import hashlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import httpx
import pytest

from deploy.local.cli import _register_suites
from deploy.local.stack import Stack
from deploy.suites.registering import write
from tests.architecture.source import ROOT
from tests.integration.gateway_world import until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

STAGES = {"general": "benchmark", "refusals": "safety", "benign": "over_refusal"}


@pytest.fixture(scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """As `up` makes it, with the two services that registering needs."""
    folder = tmp_path_factory.mktemp("new")
    stack = Stack(folder, services=("gateway", "evaluator"), furnish=_register_suites)
    await stack.up()
    yield stack
    await stack.down()


async def read(stack: Stack, path: str) -> list[dict]:
    bearer = {"authorization": f"Bearer {stack.operator_env()['RETUNE_API_KEY']}"}
    async with httpx.AsyncClient(base_url=stack.url("gateway", "/v1"), headers=bearer) as client:
        return (await client.get(path)).json()["data"]


def run(stack: Stack, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**stack.operator_env(), "PATH": ""}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


async def test_a_stack_that_is_up_has_a_suite_for_every_stage_that_needs_one(stack: Stack, tmp_path: Path):
    suites = {suite["name"]: suite for suite in await read(stack, "/suites")}
    assert {name: suite["stage"] for name, suite in suites.items()} == STAGES
    for path in write(tmp_path):
        assert suites[path.stem]["rows"] == len(path.read_text().splitlines())


async def test_what_is_registered_is_not_registered_again(stack: Stack):
    before = await read(stack, "/suites"), await read(stack, "/files?limit=100")
    again = run(stack, "deploy.suites")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert (await read(stack, "/suites"), await read(stack, "/files?limit=100")) == before


async def test_what_an_operator_registers_stays(stack: Stack, tmp_path: Path):
    own = tmp_path / "own.jsonl"
    own.write_text("".join(json.dumps({"prompt": f"How do I harm {n}?"}) + "\n" for n in range(150)))
    assert (
        run(stack, "services.admin.app", "data", "register-safety-suite", "refusals", str(own)).returncode
        == 0
    )

    async def is_shown() -> bool:
        return any(suite["rows"] == 150 for suite in await read(stack, "/suites"))

    await until(is_shown, "the operator's suite")
    assert run(stack, "deploy.suites").returncode == 0
    assert await registered(stack) == sha256(own)


async def test_not_even_a_gateway_that_knows_of_no_suite_replaces_one(stack: Stack):
    """As after an upgrade: what was registered before the gateway listed suites is not in its list."""
    mine = await registered(stack)
    db = await asyncpg.connect(stack.postgres_dsn("gateway"))
    await db.execute("DELETE FROM suite WHERE name = 'refusals'")
    await db.close()
    again = run(stack, "deploy.suites")
    assert (again.returncode, again.stderr) == (0, "")
    assert await registered(stack) == mine


async def registered(stack: Stack) -> str:
    """sha256 of the file of the newest suite `refusals`, as the evaluator keeps it."""
    db = await asyncpg.connect(stack.postgres_dsn("evaluator"))
    query = "SELECT file ->> 'sha256' FROM suite WHERE name = 'refusals' ORDER BY registered_at DESC LIMIT 1"
    found = await db.fetchval(query)
    await db.close()
    return str(found)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
