"""Clients of other people: the guide's, as it is printed, and one in another language."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deploy.local.binaries import go
from deploy.local.stack import Stack
from tests.integration.gateway.world import ENV, mark

pytestmark = pytest.mark.stack

HERE = Path(__file__).parent
GUIDE = HERE.parents[2] / "docs/guides/consumer.md"
CLIENT = re.compile(r"^## Run one$.*?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
async def stack_with_gateway(stack: Stack) -> AsyncIterator[Stack]:
    await stack.start("gateway", env=ENV)
    await stack.wait_healthy("gateway")
    yield stack
    await stack.stop("gateway")


async def output_of(stack: Stack, *command: str, folder: Path, **settings: str) -> list[str]:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=os.environ | stack.operator_env() | settings, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode().splitlines()


async def test_the_guides_client_runs_as_printed(stack_with_gateway: Stack, tmp_path: Path):
    printed = CLIENT.search(GUIDE.read_text())
    assert printed is not None, f"{GUIDE.name} prints no client"
    lines = await output_of(stack_with_gateway, sys.executable, "-c", printed[1], folder=tmp_path)
    refusals = [line for line in lines if line.startswith("retune.CommandRefused.v1")]
    assert any('"subject_id":"ftjob-1234","command":"CancelJob"' in line for line in refusals), lines


async def test_a_client_in_go_sends_a_command_and_reads_its_refusal(stack_with_gateway: Stack):
    job_id = f"ftjob-{mark()}"
    command = (str(await asyncio.to_thread(go)), "run", ".", "demo", job_id)
    lines = await output_of(
        stack_with_gateway, *command, folder=HERE / "go", GOTOOLCHAIN="local", CGO_ENABLED="0"
    )
    assert lines[-2:] == [f"retune.CommandRefused.v1 1 {job_id}", f"go-{job_id} unknown_job"]
