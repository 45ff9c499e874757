"""Sweeps on real Kafka and Postgres: no trial is lost or begun twice, whatever is killed or taken away."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from random import Random
from typing import Any
from uuid import uuid4

import pytest

from deploy.local.stack import Stack
from schemas.base import CapacityType
from schemas.job import CancelJob, SubmitJob
from schemas.node import AllocatedNode, NodesProvisioned
from schemas.sweep import (
    CancelSweep,
    Choices,
    PruningRule,
    PruningSpec,
    SubmitSweep,
    SweepEnded,
    SweepSpec,
    SweepState,
    TrialChosen,
    TrialEnded,
    TrialState,
    TrialSubmitted,
)
from services.tracker.decide.trial import job_id_of
from shared.clock import utc_now
from tests.builders import TENANT
from tests.integration.kills import second_process
from tests.integration.tracker_world import tracker, voice
from tests.integration.voices import Ear, Voices, ear
from tests.unit.tracker.sweep_world import Training, a_sweep_spec, cancelled, evaluating, succeeded, written

__all__ = ["tracker", "voice"]

pytestmark = pytest.mark.stack

HALVING = PruningSpec(rule=PruningRule.SUCCESSIVE_HALVING)
PRUNED_TPE = {"algorithm": "tpe", "pruning": HALVING, "num_trials": 14, "concurrency": 3}


@pytest.fixture(scope="module")
async def heard(tracker: Stack) -> AsyncIterator[Ear]:
    async with ear(tracker, "job.commands", "sweep.events") as heard:
        yield heard


@dataclass
class Jobs:
    """The scheduler and the runners of a sweep's trials."""

    voice: Voices
    heard: Ear
    sweep_id: str
    spec: SweepSpec
    trainings: dict[str, Training] = field(default_factory=dict)

    async def submit(self) -> None:
        command = SubmitSweep(sweep_id=self.sweep_id, tenant=TENANT, dataset_id="ds-1", spec=self.spec)
        await self.voice.say("gateway", command)

    def of(self, kind: type[Any]) -> list[Any]:
        """What was heard of the sweep, in the order of its own topic."""
        mine = {self.sweep_id, *(job_id_of(self.sweep_id, number) for number in range(self.spec.num_trials))}
        known = [each.message for key in mine for each in self.heard.heard[key]]
        return [each for each in known if isinstance(each, kind)]

    @property
    def is_over(self) -> bool:
        return bool(self.of(SweepEnded))

    async def train(self, *, seed: int, preemptions: float, kills: Sequence[Any] = ()) -> None:
        """Train what is asked for until the sweep has ended; kills happen one after the other in between."""
        random, strikes, sent = Random(seed), list(kills), 0
        while not self.is_over:
            for command in self.of(SubmitJob):
                self.trainings.setdefault(command.job_id, Training(command))
            for command in self.of(CancelJob):
                self.trainings[command.job_id].is_stopped = True
            running = [each for each in self.trainings.values() if not each.is_over]
            if not running:
                await asyncio.sleep(0.02)
                continue
            for message in random.choice(running).news(random, preemptions):
                writer = "trainer_agent" if message.type == "CheckpointWritten" else "scheduler"
                await self.voice.say(writer, message)
            sent += 1
            if strikes and sent % 25 == 0:
                await strikes.pop()()

    @property
    def results(self) -> list[tuple[Any, ...]]:
        parameters = {each.number: each.parameters for each in self.of(TrialSubmitted)}
        ends = sorted((each.number, each.state, each.valid_loss) for each in self.of(TrialEnded))
        return [(*end, parameters[end[0]]) for end in ends]


@pytest.fixture
def begin(voice: Voices, heard: Ear) -> Any:
    async def sweep(**changes: Any) -> Jobs:
        jobs = Jobs(voice, heard, f"sweep-{uuid4().hex[:8]}", a_sweep_spec(**changes))
        await jobs.submit()
        return jobs

    return sweep


async def test_killed_trackers_and_preempted_nodes_change_no_trial(tracker: Stack, begin: Any):
    calm = await begin(**PRUNED_TPE)
    await calm.train(seed=0, preemptions=0.0)
    struck = await begin(**PRUNED_TPE)

    async def kill() -> None:
        await tracker.wait_healthy("tracker")
        await tracker.kill("tracker")

    await struck.train(seed=1, preemptions=0.3, kills=[kill] * 4)
    assert struck.results == calm.results
    best, same = calm.of(SweepEnded)[0], struck.of(SweepEnded)[0]
    assert (best.state, best.best, best.best_valid_loss) == (same.state, same.best, same.best_valid_loss)
    for jobs in (calm, struck):
        assert len(jobs.of(TrialSubmitted)) == len(jobs.of(TrialEnded)) == 14
        asked = [each.job_id for each in jobs.of(SubmitJob)]
        assert len(asked) == len(set(asked)), "no trial is submitted twice"
        assert len(jobs.of(SweepEnded)) == 1
    assert any(state is TrialState.PRUNED for _, state, *_ in calm.results)
    assert sum(each.attempt - 1 for each in struck.trainings.values()) > 0


async def test_the_best_trial_alone_goes_to_the_gate(heard: Ear, begin: Any):
    jobs = await begin(num_trials=4, concurrency=4)
    await jobs.train(seed=2, preemptions=0.0)
    ended = jobs.of(SweepEnded)[0]
    chosen = await heard.until_any(job_id_of(jobs.sweep_id, ended.best), "TrialChosen")
    assert chosen.trial.number == ended.best
    assert chosen.job_id == job_id_of(jobs.sweep_id, ended.best)
    assert len(jobs.of(TrialChosen)) == 1
    losses = {each.number: each.valid_loss for each in jobs.of(TrialEnded)}
    assert losses[ended.best] == min(losses.values()) == ended.best_valid_loss


async def test_a_grid_is_tried_whole(begin: Any):
    grid = {"learning_rate": Choices(choices=(1e-4, 2e-4, 3e-4)), "lora.rank": Choices(choices=(4, 8))}
    jobs = await begin(algorithm="grid", parameters=grid, num_trials=20)
    await jobs.train(seed=4, preemptions=0.2)
    tried = {tuple(sorted(each.parameters.items())) for each in jobs.of(TrialSubmitted)}
    assert len(tried) == len(jobs.of(TrialSubmitted)) == len(jobs.of(SubmitJob)) == 6


async def test_the_budget_ends_what_runs(voice: Voices, heard: Ear, begin: Any):
    """No message comes when the money is spent: it is looked at."""
    jobs = await begin(num_trials=6, concurrency=2, max_cost=Decimal("5.00"))
    first, second = (job_id_of(jobs.sweep_id, number) for number in range(2))
    submitted = await heard.until_any(first, "SubmitJob")
    for message in (written(first, 100, 1.5), evaluating(submitted)):
        writer = "trainer_agent" if message.type == "CheckpointWritten" else "scheduler"
        await voice.say(writer, message)
    await heard.until_any(second, "SubmitJob")
    node = AllocatedNode(
        node_id="n", index=0, price_per_hour=Decimal(10), allocated_at=utc_now() - timedelta(hours=1)
    )
    held = {"pool": "cpu", "capacity_type": CapacityType.SPOT, "nodes": (node,)}
    await voice.say("provisioner", NodesProvisioned(job_id=second, tenant=TENANT, attempt=1, **held))
    stop = await heard.until_any(second, "CancelJob")
    assert stop.reason == "budget"
    await voice.say("scheduler", cancelled(second, "budget"), succeeded(first))
    ended = await heard.until_any(jobs.sweep_id, "SweepEnded")
    assert (ended.state, ended.best, ended.num_trials) == (SweepState.SUCCEEDED, 0, 2)
    assert ended.cost > Decimal("9.99")


async def test_a_cancelled_sweep_chooses_nothing(voice: Voices, heard: Ear, begin: Any):
    jobs = await begin(num_trials=6, concurrency=2)
    running = [job_id_of(jobs.sweep_id, number) for number in range(2)]
    for job_id in running:
        await heard.until_any(job_id, "SubmitJob")
    await voice.say("gateway", CancelSweep(sweep_id=jobs.sweep_id, tenant="other"))
    await heard.until_any(jobs.sweep_id, "CommandRefused")
    await voice.say("gateway", CancelSweep(sweep_id=jobs.sweep_id, tenant=TENANT))
    for job_id in running:
        assert (await heard.until_any(job_id, "CancelJob")).reason == "user"
        await voice.say("scheduler", cancelled(job_id, "user"))
    ended = await heard.until_any(jobs.sweep_id, "SweepEnded")
    assert (ended.state, ended.best) == (SweepState.CANCELLED, None)
    assert jobs.of(TrialChosen) == []


async def test_a_sweep_that_could_not_run_is_refused(voice: Voices, heard: Ear):
    sweep_id = f"sweep-{uuid4().hex[:8]}"
    spec = a_sweep_spec(algorithm="grid")
    await voice.say("gateway", SubmitSweep(sweep_id=sweep_id, tenant=TENANT, dataset_id="ds-1", spec=spec))
    refused = await heard.until_any(sweep_id, "CommandRefused")
    assert (refused.code, refused.param) == ("endless_grid", "spec.parameters.learning_rate")


async def test_two_processes_begin_each_trial_once(tracker: Stack, begin: Any):
    async with second_process(tracker, "tracker") as second:
        sweeps = [await begin(num_trials=6, concurrency=3) for _ in range(3)]
        await tracker.wait_healthy(second)
        await asyncio.gather(*(each.train(seed=3, preemptions=0.1) for each in sweeps))
        for jobs in sweeps:
            asked = [each.job_id for each in jobs.of(SubmitJob)]
            assert sorted(asked) == sorted(job_id_of(jobs.sweep_id, number) for number in range(6))
        assert len({tuple(map(str, jobs.results)) for jobs in sweeps}) == 1
