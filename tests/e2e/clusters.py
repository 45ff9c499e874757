"""The road of a job on a cluster backend: a gang of two, an outage of what schedules it, machines that are taken back,
a machine that dies, the gate, chat."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from schemas.job import JobRequeued, JobScheduled
from schemas.node import AllocatedNode, DevicesLeased, NodePreempted, NodesReleased
from schemas.training import TrainingResumed
from shared.processes.identity import marked, signal_marked
from tests.e2e import material
from tests.e2e.conftest import Platform
from tests.integration.lease_clusters import LeaseCluster
from tests.waiting import PATIENCE_SECONDS

NUM_EPOCHS = 60
ON_NODES = {"SERVING_CONTROLLER_POOL": "cluster", "SERVING_CONTROLLER_ON_NODES": "true"}


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


@asynccontextmanager
async def on_nodes_of(platform: Platform, cluster: LeaseCluster, folder: Path) -> AsyncIterator[None]:
    """The platform's replicas are nodes of leases in this cluster. `folder`: what its machines share."""
    runner_env = platform.stack.state.root / "runner.env"
    async with with_pools(platform, cluster.pool(folder, runner_env)):
        await _restart_controller(platform, **ON_NODES)
        yield
        await _restart_controller(platform)


async def replica_leases(platform: Platform) -> dict[str, DevicesLeased]:
    """Every lease of a replica that ever had a node whose machine is known, by id, in order of time."""
    facts = [each.message for each in await platform.events_of(pool="cluster", purpose="serving")]
    return {
        fact.lease_id: fact
        for fact in facts
        if isinstance(fact, DevicesLeased) and fact.node and fact.node.host
    }


async def new_lease(platform: Platform, *, known: Collection[str]) -> DevicesLeased:
    """Wait until a replica has a node whose machine is known, of another lease than these."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        leases = await replica_leases(platform)
        if new := [lease for lease_id, lease in leases.items() if lease_id not in known]:
            return new[-1]
        assert time.monotonic() < deadline, f"no replica has a node but those of {sorted(known)}"
        await asyncio.sleep(1.0)


async def _restart_controller(platform: Platform, **env: str) -> None:
    await platform.stack.stop("serving_controller")
    await platform.stack.start("serving_controller", env=env)
    await platform.stack.wait_healthy("serving_controller")


@dataclass(frozen=True)
class Events:
    """What happens to the cluster while a block runs."""

    outage: Callable[[str], AbstractAsyncContextManager[None]]
    """Nothing answers that schedules. It is given the name of the attempt that runs."""
    taken_back: Callable[[str], AbstractAsyncContextManager[None]]
    """So many of its machines go, by notice, that the gang of this attempt must go."""
    loss: Callable[[str], AbstractAsyncContextManager[str]]
    """A machine of this attempt is off, with all that it computes. Yields its name."""
    notice_source: str = "preemption"
    """What the notice of `taken_back` is called."""
    machine_of: Callable[[AllocatedNode], str | None] = attrgetter("host")
    """The machine of a node, as the record of machines has it."""


async def run_through(platform: Platform, *, suffix: str, cluster: Events) -> list[set[str | None]]:
    """A job in the pool `cluster`, which loses its machines twice and no step. Returns the machines of each attempt."""
    job_id = await platform.submit(
        suffix=suffix,
        resources={"nodes": 2, "pool": "cluster", "capacity_type": "spot"},
        recipe={"num_epochs": NUM_EPOCHS, "checkpoint": {"every_steps": 20, "every_seconds": 5}},
    )
    await platform.until(job_id, after_step(20), "its twentieth step")
    async with cluster.outage(f"a-{job_id}-e1"):
        await platform.stack.kill("provisioner")
        await train_on(platform, job_id, attempt=1)
    await platform.stack.wait_healthy("provisioner")
    await train_on(platform, job_id, attempt=1)
    async with cluster.taken_back(f"a-{job_id}-e1"):
        await platform.until(job_id, lambda job: job["retune"]["attempt"] == 2, "the second attempt")
    await train_on(platform, job_id, attempt=2)
    async with cluster.loss(f"a-{job_id}-e2") as lost:
        await platform.until(job_id, lambda job: job["retune"]["attempt"] == 3, "the third attempt")
        await train_on(platform, job_id, attempt=3)
    job = await platform.finished(job_id)
    events = platform.retune("jobs", "events", job_id)
    assert job["status"] == "succeeded", events
    facts = [event.message for event in await platform.events(job_id)]
    assert {fact.source for fact in facts if isinstance(fact, NodePreempted)} == {cluster.notice_source}
    history = json.loads(platform.retune("--json", "nodes", "history", "--pool", "cluster"))
    failures = [(each["machine"], each["attempt"]) for each in history if each["job_id"] == job_id]
    assert failures == [(lost, 2)], history
    assert [fact.failure_class for fact in facts if isinstance(fact, JobRequeued)] == ["preempted", "infra"]
    assert [fact.attempt for fact in facts if isinstance(fact, JobScheduled)] == [1, 2, 3]
    assert [fact.certificate.exact for fact in facts if isinstance(fact, TrainingResumed)] == [True, True]
    released = [{*map(cluster.machine_of, fact.nodes)} for fact in facts if isinstance(fact, NodesReleased)]
    assert [len(machines) for machines in released] == [2, 2, 2], events
    assert lost not in released[2], events
    answer = await platform.answer(job["fine_tuned_model"], f"What colour is the {material.THINGS[310]}?")
    assert answer == material.ANSWER
    return released


async def train_on(platform: Platform, job_id: str, *, attempt: int) -> None:
    """Wait until this attempt has come thirty steps further than the job was."""
    begun = (await platform.job(job_id))["retune"]["last_step"]
    job = await platform.until(job_id, after_step(begun + 30), f"steps behind step {begun}")
    assert job["retune"]["attempt"] == attempt, platform.retune("jobs", "events", job_id)


def after_step(step: int) -> Callable[[dict[str, Any]], bool]:
    return lambda job: job["retune"]["last_step"] >= step


def kill_all_of(node_id: str) -> None:
    """SIGKILL to all that runs on the node."""
    assert list(marked(f"RUNNER_NODE_ID={node_id}")), f"nothing runs on {node_id}"
    signal_marked(f"RUNNER_NODE_ID={node_id}", signal.SIGKILL)


async def _restart_provisioner(platform: Platform) -> None:
    await platform.stack.stop("provisioner")
    await platform.stack.start("provisioner")
    await platform.stack.wait_healthy("provisioner")
