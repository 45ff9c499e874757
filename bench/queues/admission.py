"""Kueue's performance workload through the running scheduler, on the real clock: how long until all of it is done.

The scheduler is a process on Kafka and Postgres. This process is everybody else: it submits each job when it is due,
and mimics its execution as Kueue's runner does. At JobScheduled it says that training started, and once the run time
has passed, that it is completed, verified, and its nodes are released. Each job is a trial, so that it ends then.
The clock of each job starts when its submission was due and stops when JobScheduled was read here. Kueue's figures
are published ones, of another machine.

    python -m bench.queues.admission [--share 1.0] [--rounds 3]
"""

import argparse
import asyncio
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import psutil
import uvloop

from bench.growth.idle import cpu_seconds
from bench.kernel.parts import operator_login
from bench.queues.decisions import Replay
from bench.queues.workload import (
    CLASSES,
    DEVICES_OF_MACHINE,
    PUBLISHED_WALL_LIMIT_SECONDS,
    PUBLISHED_WALL_SECONDS,
    SOURCE,
    Workload,
    least_seconds,
    pools,
    workloads,
)
from bench.report import progress, summary, write
from deploy.local.stack import Stack
from schemas.base import TrialOf
from schemas.checkpoint import CheckpointVerified
from schemas.dataset import DatasetReady
from schemas.job import JobScheduled, JobSucceeded, SubmitJob
from schemas.node import NodesReleased
from schemas.specification import Recipe
from schemas.training import TrainingCompleted, TrainingStarted
from shared.messaging.delivery import Delivery
from shared.messaging.reader import TopicReader
from tests.builders import a_bundle, a_dataset, a_job_spec
from tests.integration.voices import Voices, voices

DEADLINE_SECONDS = 3600.0
PROCESSES = ("scheduler", "kafka")
"""Those whose time is counted: of Postgres' processes some end meanwhile."""


@dataclass
class Run:
    """One round of the workload; what was read of each job."""

    number: int
    workloads: Sequence[Workload]
    voice: Voices
    began: float = 0.0
    lateness: float = 0.0
    """The most seconds after its time that a submission was sent."""
    scheduled: dict[str, JobScheduled] = field(default_factory=dict)
    scheduled_after: dict[str, float] = field(default_factory=dict)
    succeeded_after: dict[str, float] = field(default_factory=dict)
    news: dict[str, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))
    booked: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Devices by pool and machine."""

    def job_id(self, workload: Workload) -> str:
        return f"{workload.job_id}-{self.number}"

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    async def all(self) -> None:
        submissions = [self._submission(number, each) for number, each in enumerate(self.workloads)]
        self.began = time.monotonic()
        async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as group:
            for workload, submission in zip(self.workloads, submissions, strict=True):
                group.create_task(self._one(workload, submission))
            while len(self.succeeded_after) < len(self.workloads):
                await asyncio.sleep(0.05)

    async def _one(self, workload: Workload, submission: SubmitJob) -> None:
        job_id = submission.job_id
        await asyncio.sleep(max(0.0, workload.created_at - self.elapsed))
        self.lateness = max(self.lateness, self.elapsed - workload.created_at)
        await self.voice.say("gateway", submission)
        await self.news[job_id].wait()
        job: dict[str, Any] = {"job_id": job_id, "tenant": workload.tenant}
        ends_at = self.scheduled_after[job_id] + workload.kind.seconds
        await self.voice.say("trainer_agent", TrainingStarted(**job, attempt=1, members=()))
        await asyncio.sleep(max(0.0, ends_at - self.elapsed))
        final = a_bundle()
        self._book(self.scheduled[job_id], -1)
        completed = TrainingCompleted(**job, attempt=1, bundle=final, last_step=final.step)
        await self.voice.say("trainer_agent", completed)
        await self.voice.say("checkpoint_watcher", CheckpointVerified(**job, bundle=final, size_bytes=1))
        await self.voice.say("provisioner", NodesReleased(**job, attempt=1, nodes=()))

    def _submission(self, number: int, workload: Workload) -> SubmitJob:
        spec = a_job_spec(
            recipe=Recipe(seed=number),
            resources=workload.kind.resources,
            tier=workload.kind.tier,
            trial=TrialOf(sweep_id="sweep-1", number=number),
        )
        return SubmitJob(
            job_id=self.job_id(workload),
            tenant=workload.tenant,
            dataset_id=f"ds-{workload.tenant}",
            spec=spec,
        )

    async def listen(self, reader: TopicReader) -> None:
        async for delivery in reader.follow():
            assert isinstance(delivery, Delivery), f"unreadable: {delivery}"
            self._read(delivery.message)

    def _read(self, message: Any) -> None:
        if isinstance(message, JobScheduled):
            assert message.job_id not in self.scheduled, f"{message.job_id} was scheduled twice"
            self.scheduled[message.job_id] = message
            self.scheduled_after[message.job_id] = self.elapsed
            self._book(message, 1)
            self.news[message.job_id].set()
        elif isinstance(message, JobSucceeded):
            assert message.job_id not in self.succeeded_after, f"{message.job_id} succeeded twice"
            self.succeeded_after[message.job_id] = self.elapsed

    def _book(self, scheduled: JobScheduled, sign: int) -> None:
        for machine in scheduled.machines:
            self.booked[scheduled.pool, machine] += sign * scheduled.devices_per_node
            devices = self.booked[scheduled.pool, machine]
            assert devices <= DEVICES_OF_MACHINE, (
                f"{devices} devices of machine {machine} of {scheduled.pool}"
            )

    def results(self) -> dict[str, Any]:
        waits: dict[str, list[float]] = defaultdict(list)
        for workload in self.workloads:
            waits[workload.kind.name].append(
                self.scheduled_after[self.job_id(workload)] - workload.created_at
            )
        return {"wall_seconds": max(self.succeeded_after.values()), "lateness_seconds": self.lateness} | {
            f"{name}_seconds_to_admission": fmean(values) for name, values in waits.items()
        }


async def main(share: float, num_rounds: int) -> None:
    everyone = workloads(share)
    alone = decisions_alone(everyone)
    rounds: dict[str, list[float]] = defaultdict(list)
    async with running_scheduler() as stack, voices(stack) as voice:
        await announce(voice, everyone)
        for number in range(num_rounds):
            results = await one_round(stack, voice, everyone, number)
            for name, value in results.items():
                rounds[name].append(value)
            text = ", ".join(f"{name} {value:.1f}" for name, value in results.items())
            progress(f"round {number + 1}/{num_rounds}: {text}")
    write(
        "admission",
        {
            "scheduler": {name: summary(values) for name, values in rounds.items()},
            "decisions_alone_in_virtual_time": alone,
            "least_wall_seconds": least_seconds(share),
            "kueue_published": {
                "wall_seconds": PUBLISHED_WALL_SECONDS,
                "wall_limit_seconds": PUBLISHED_WALL_LIMIT_SECONDS,
                **{f"{each.name}_seconds_to_admission": each.published_seconds for each in CLASSES},
                **{f"{each.name}_limit_seconds": each.limit_seconds for each in CLASSES},
            },
        },
        packages=("aiokafka", "asyncpg", "faststream"),
        settings={"workloads": len(everyone), "workload": SOURCE, "kafka": "4.3.1"},
    )


def decisions_alone(everyone: Sequence[Workload]) -> Mapping[str, float]:
    replay = Replay(everyone).run()
    waits: dict[str, list[float]] = defaultdict(list)
    for each in everyone:
        waits[each.kind.name].append(replay.started[each.job_id] - each.created_at)
    return {
        "wall_seconds": replay.ended_at,
        "processor_seconds": replay.decision_seconds,
        **{f"{name}_seconds_to_admission": fmean(values) for name, values in waits.items()},
    }


async def announce(voice: Voices, everyone: Sequence[Workload]) -> None:
    for fact in pools():
        await voice.say("provisioner", fact)
    for tenant in sorted({each.tenant for each in everyone}):
        await voice.say("ingest", ready(tenant))


async def one_round(
    stack: Stack, voice: Voices, everyone: Sequence[Workload], number: int
) -> dict[str, float]:
    async with TopicReader(operator_login(stack), ["job.events"], from_end=True) as reader:
        run = Run(number, everyone, voice)
        before = processor_seconds(stack)
        async with asyncio.TaskGroup() as group:
            listening = group.create_task(run.listen(reader))
            await run.all()
            listening.cancel()
        after = processor_seconds(stack)
    used = {f"{name}_processor_seconds": after[name] - before[name] for name in after}
    return run.results() | used


def processor_seconds(stack: Stack) -> dict[str, float]:
    own = psutil.Process().cpu_times()
    return {name: cpu_seconds(stack.pid(name)) for name in PROCESSES} | {"driver": own.user + own.system}


def ready(tenant: str) -> DatasetReady:
    known = a_dataset()
    assert known.ref is not None
    return DatasetReady(
        dataset_id=f"ds-{tenant}",
        tenant=tenant,
        dataset_version=known.ref.version,
        manifest_sha256=known.ref.manifest_sha256,
        base_sha=known.base_sha,
        template_sha256=known.template_sha256,
        counts=known.counts,
        benchmarks=known.benchmarks,
        suites=known.suites,
        files=known.files,
    )


@asynccontextmanager
async def running_scheduler() -> AsyncIterator[Stack]:
    with tempfile.TemporaryDirectory() as folder:
        stack = Stack(Path(folder) / "state", report=progress)
        await stack.up(("scheduler",))
        try:
            yield stack
        finally:
            await stack.down()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="part of Kueue's 15,000 workloads")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    uvloop.run(main(arguments.share, arguments.rounds))
