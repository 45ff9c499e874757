"""An elastic job on real nodes: two of them, one after a loss, two again once the other machine takes work."""

from collections.abc import AsyncIterator

import pytest

from schemas.job import JobRequeued, JobScheduled, JobStopping
from schemas.training import TrainingResumed
from tests.chaos.scale import at_night
from tests.e2e.clusters import kill_all_of
from tests.e2e.conftest import Platform

pytestmark = [
    pytest.mark.stack,
    pytest.mark.torch,
    at_night("a job of three attempts on the whole platform"),
]

POOL = "cpu-spot"


@pytest.fixture
async def grows_soon(platform: Platform) -> AsyncIterator[None]:
    await restart_scheduler(platform, SCHEDULER_GROW_AFTER="PT3S")
    yield
    platform.retune("nodes", "set-capacity", POOL, "2")
    await restart_scheduler(platform)


async def restart_scheduler(platform: Platform, **env: str) -> None:
    await platform.stack.stop("scheduler")
    await platform.stack.start("scheduler", env=env)
    await platform.stack.wait_healthy("scheduler")


async def test_it_goes_on_with_one_of_two_nodes_and_grows_to_two(platform: Platform, grows_soon: None):
    job_id = await platform.submit(
        suffix="elastic",
        recipe={"num_epochs": 60, "checkpoint": {"every_steps": 20, "every_seconds": 5}},
        resources={"min_nodes": 1, "nodes": 2, "pool": POOL, "capacity_type": "spot"},
    )
    await platform.until(job_id, lambda job: job["retune"]["last_step"] >= 20, "its twentieth step")
    platform.retune("nodes", "set-capacity", POOL, "1")
    kill_all_of(f"a-{job_id}-e1-n1")
    alone = await platform.until(job_id, lambda job: job["retune"]["attempt"] == 2, "the second attempt")
    began_at = alone["retune"]["last_step"]
    await platform.until(
        job_id, lambda job: job["retune"]["last_step"] >= began_at + 20, "its steps on one node"
    )
    platform.retune("nodes", "set-capacity", POOL, "2")
    job = await platform.finished(job_id)
    events = platform.retune("jobs", "events", job_id)
    assert job["status"] == "succeeded", events
    facts = [each.message for each in await platform.events(job_id)]
    assert [fact.nodes for fact in facts if isinstance(fact, JobScheduled)] == [2, 1, 2], events
    assert [fact.failure_class for fact in facts if isinstance(fact, JobRequeued)] == ["infra", "resized"]
    assert [fact.reason for fact in facts if isinstance(fact, JobStopping)] == ["failure", "grow"], events
    resumed = [fact.certificate for fact in facts if isinstance(fact, TrainingResumed)]
    assert [certificate.exact for certificate in resumed] == [False, False]
    assert all(certificate.reason.startswith("number of processes: ") for certificate in resumed)
    assert all(each.found_batch_sha256 == each.expected_batch_sha256 for each in resumed)
