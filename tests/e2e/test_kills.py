"""kill -9 of every kind of process of the stack while jobs are on their way."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from deploy.local.stack import PARTS
from schemas.topics import SERVICES
from shared.processes.ending import until
from shared.processes.identity import Identity, marked
from tests.chaos.scale import scaled
from tests.e2e.conftest import PATIENCE_SECONDS, TERMINAL, Platform

pytestmark = [pytest.mark.stack, pytest.mark.torch, pytest.mark.timeout(900)]

AT_ONCE = scaled(4, 1, 1)
"""Services that are killed together."""
DETACHED = (
    "services.trainer_agent.runner",
    "services.trainer_agent.training.main",
    "services.evaluator.scoring",
    "serving_controller.clients.server",
)
"""What the services start, by a word of its command line, in the order in which a job needs it."""


async def test_no_process_of_the_stack_takes_a_job_with_it(platform: Platform):
    jobs: list[str] = []
    together = [SERVICES[first : first + AT_ONCE] for first in range(0, len(SERVICES), AT_ONCE)]
    for names in (*((part,) for part in PARTS), *together):
        if not jobs or await has_ended(platform, jobs[-1]):
            jobs.append(await platform.submit(suffix="killed", recipe={"num_epochs": 20}))
        await asyncio.gather(*map(platform.stack.kill, names))
        await asyncio.gather(*map(platform.stack.wait_healthy, names))
    for job_id in jobs:
        await assert_served(platform, job_id)
    assert platform.retune("--json", "parked", "list") == "[]"


async def test_no_detached_process_takes_a_job_with_it(platform: Platform):
    job_id = await platform.submit(suffix="orphaned")
    for word in DETACHED:
        process = await running(platform, word)
        assert not await has_ended(platform, job_id), f"{job_id} ended before {word} was killed"
        process.signal_alone(signal.SIGKILL)
    await assert_served(platform, job_id)


async def has_ended(platform: Platform, job_id: str) -> bool:
    return (await platform.job(job_id))["retune"]["state"] in TERMINAL


async def assert_served(platform: Platform, job_id: str) -> None:
    job = await platform.finished(job_id)
    assert job["status"] == "succeeded", platform.retune("jobs", "events", job_id)
    assert job["retune"]["is_deployed"], platform.retune("jobs", "events", job_id)


async def running(platform: Platform, word: str) -> Identity:
    """A process of this stack with `word` in its command line, as soon as there is one."""
    processes: list[Identity] = []

    def is_there() -> bool:
        processes[:] = with_word(platform, word)
        return bool(processes)

    await until(is_there, PATIENCE_SECONDS)
    assert processes, f"no process with {word} in its command line"
    return processes[0]


def with_word(platform: Platform, word: str) -> Iterator[Identity]:
    return (process for process, line in command_lines(platform) if word in line)


def command_lines(platform: Platform) -> Iterator[tuple[Identity, str]]:
    """Every process of the stack, with what it was started with."""
    for process in marked(platform.stack.state.mark):
        with suppress(FileNotFoundError, ProcessLookupError):
            line = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            yield process, line.replace(b"\0", b" ").decode()
