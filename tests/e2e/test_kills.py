"""kill -9 of every process of the stack, one after another, while one job is on its way."""

import pytest

from deploy.local.stack import PARTS
from schemas.topics import SERVICES
from tests.e2e.conftest import Platform

pytestmark = [pytest.mark.stack, pytest.mark.torch, pytest.mark.timeout(900)]


async def test_no_process_of_the_stack_takes_a_job_with_it(platform: Platform):
    job_id = await platform.submit(suffix="killed", recipe={"num_epochs": 30})
    await platform.until(job_id, lambda job: job["retune"]["last_step"] >= 20, "the first checkpoint")
    for name in (*SERVICES, *PARTS):
        await platform.stack.kill(name)
        await platform.stack.wait_healthy(name)
    job = await platform.finished(job_id)
    assert job["status"] == "succeeded", platform.retune("jobs", "events", job_id)
    assert job["retune"]["is_deployed"], platform.retune("jobs", "events", job_id)
    assert platform.retune("--json", "parked", "list") == "[]"
