"""The road of a job whose nodes are a cluster's: a gang of two, taken back by the cluster, a resumption, the gate, chat."""

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager

from schemas.job import JobRequeued, JobScheduled
from schemas.node import NodeLost, NodePreempted, NodesReleased
from schemas.training import TrainingResumed
from tests.e2e import material
from tests.e2e.conftest import Platform


@asynccontextmanager
async def with_pools(platform: Platform, pools: str) -> AsyncIterator[None]:
    """The platform has these pools beside its own."""
    file = platform.stack.state.root / "pools.toml"
    before = file.read_text()
    file.write_text(before + pools)
    await _restart_provisioner(platform)
    yield
    file.write_text(before)
    await _restart_provisioner(platform)


async def run_through(platform: Platform, *, suffix: str, taken_back: AbstractContextManager[None]) -> None:
    """A job in the pool `cluster`; others have its machines while `taken_back` holds."""
    job_id = await platform.submit(
        suffix=suffix, resources={"nodes": 2, "pool": "cluster", "capacity_type": "spot"}
    )
    await platform.until(job_id, lambda job: job["retune"]["last_step"] >= 20, "its twentieth step")
    with taken_back:
        await platform.until(job_id, lambda job: job["retune"]["attempt"] == 2, "the second attempt")
    job = await platform.finished(job_id)
    assert job["status"] == "succeeded", platform.retune("jobs", "events", job_id)
    facts = [event.message for event in await platform.events(job_id)]
    assert {fact.source for fact in facts if isinstance(fact, NodePreempted)} == {"preemption"}
    assert [fact.failure_class for fact in facts if isinstance(fact, JobRequeued)] == ["preempted"]
    assert [fact.certificate.exact for fact in facts if isinstance(fact, TrainingResumed)] == [True]
    released = [[node.host for node in fact.nodes] for fact in facts if isinstance(fact, NodesReleased)]
    assert [len(machines) for machines in released] == [2, 2]
    assert [fact for fact in facts if isinstance(fact, NodeLost)] == []
    assert [fact.attempt for fact in facts if isinstance(fact, JobScheduled)] == [1, 2]
    answer = await platform.answer(job["fine_tuned_model"], f"What colour is the {material.THINGS[310]}?")
    assert answer == material.ANSWER


async def _restart_provisioner(platform: Platform) -> None:
    await platform.stack.stop("provisioner")
    await platform.stack.start("provisioner")
    await platform.stack.wait_healthy("provisioner")
