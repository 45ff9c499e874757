"""kill -9 of every kind of process of the stack while jobs are on their way."""

import asyncio

import pytest

from deploy.local.stack import PARTS
from schemas.topics import SERVICES
from tests.chaos.scale import scaled
from tests.e2e.conftest import TERMINAL, Platform

pytestmark = [pytest.mark.stack, pytest.mark.torch]

AT_ONCE = scaled(4, 1, 1)
"""Services that are killed together."""


async def test_no_process_of_the_stack_takes_a_job_with_it(platform: Platform):
    jobs: list[str] = []
    together = [SERVICES[first : first + AT_ONCE] for first in range(0, len(SERVICES), AT_ONCE)]
    for names in (*((part,) for part in PARTS), *together):
        if not jobs or await has_ended(platform, jobs[-1]):
            jobs.append(await platform.submit(suffix="killed", recipe={"num_epochs": 20}))
        await asyncio.gather(*map(platform.stack.kill, names))
        await asyncio.gather(*map(platform.stack.wait_healthy, names))
    for job_id in jobs:
        job = await platform.finished(job_id)
        assert job["status"] == "succeeded", platform.retune("jobs", "events", job_id)
        assert job["retune"]["is_deployed"], platform.retune("jobs", "events", job_id)
    assert platform.retune("--json", "parked", "list") == "[]"


async def has_ended(platform: Platform, job_id: str) -> bool:
    return (await platform.job(job_id))["retune"]["state"] in TERMINAL
