"""A sweep beside its jobs: trials train along curves that are known, in whatever order chance takes them, and nodes are
taken away from them.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from math import log10
from random import Random
from typing import Any

from schemas.base import Message
from schemas.job import CancelJob, JobCancelled, JobEvaluating, JobQueued, JobSucceeded, SubmitJob
from schemas.sweep import Choices, Range, SubmitSweep, SweepSpec, SweepState
from schemas.training import BundleKind, CheckpointWritten
from services.tracker.decide import search, sweeps
from services.tracker.decide.sweeps import Decision, JobNews, Sweep
from services.tracker.decide.trial import Trial
from tests.builders import NOON, TENANT, a_bundle, a_dataset_ref, a_file_ref, a_job_spec, a_sha

SWEEP_ID = "sweep-1"
NUM_STEPS = 100
EVERY = 10
"""Steps from one bundle to the next."""
RATES = Range(low=1e-5, high=1e-2, log=True)
RANKS = Choices(choices=(4, 8, 16))


def a_sweep_spec(**changes: Any) -> SweepSpec:
    fields = {
        "job": a_job_spec(validation_file=a_file_ref("valid.jsonl")),
        "parameters": {"learning_rate": RATES, "lora.rank": RANKS},
        "algorithm": "random",
        "num_trials": 8,
        "concurrency": 2,
    }
    return SweepSpec(**fields | changes)


def loss_at(spec: SubmitJob, step: int) -> float:
    """The best rate is 3e-4, a larger rank is a little better; every curve falls."""
    recipe = spec.spec.recipe
    rate = 2e-4 if recipe.learning_rate == "auto" else recipe.learning_rate
    final = 1 + (log10(rate) + 3.52) ** 2 + 0.4 / recipe.lora.rank
    return final + (3 - final / 10) * (1 - step / NUM_STEPS) ** 2


def queued(job_id: str) -> JobQueued:
    return JobQueued(
        job_id=job_id,
        tenant=TENANT,
        dataset=a_dataset_ref(),
        config_hash=a_sha(job_id),
        num_steps=NUM_STEPS,
        waiting_for="nodes",
    )


def written(job_id: str, step: int, loss: float | None, *, attempt: int = 1) -> CheckpointWritten:
    kind = BundleKind.FINAL if step == NUM_STEPS else BundleKind.PERIODIC
    metrics = {} if loss is None else {"valid_loss": loss}
    bundle = a_bundle(step=step, attempt=attempt)
    return CheckpointWritten(
        job_id=job_id, tenant=TENANT, attempt=attempt, bundle=bundle, kind=kind, metrics=metrics
    )


def evaluating(submitted: SubmitJob, *, attempt: int = 1, best: float | None = None) -> JobEvaluating:
    return JobEvaluating(
        job_id=submitted.job_id,
        tenant=TENANT,
        attempt=attempt,
        bundle=a_bundle(step=NUM_STEPS, attempt=attempt),
        dataset=a_dataset_ref(),
        config_hash=a_sha(submitted.job_id),
        base_model="tiny",
        base_sha=a_sha("base"),
        template_sha256=a_sha("template"),
        kind="adapter",
        rank=8,
        full_name="ft:tiny:acme::",
        auto_deploy=submitted.spec.auto_deploy,
        holdout=None,
        gate=submitted.spec.gate,
        benchmarks={},
        suites={},
        best_valid_loss=best,
        trial=submitted.spec.trial,
    )


def succeeded(job_id: str) -> JobSucceeded:
    return JobSucceeded(
        job_id=job_id,
        tenant=TENANT,
        fine_tuned_model=None,
        model_id=None,
        promoted=False,
        deployed=False,
        message="",
    )


def cancelled(job_id: str, reason: Any = "prune") -> JobCancelled:
    return JobCancelled(job_id=job_id, tenant=TENANT, reason=reason, artifact=None)


@dataclass
class Training:
    """A job that runs, as the scheduler and its runners would have it."""

    submitted: SubmitJob
    step: int = 0
    attempt: int = 1
    is_queued: bool = False
    is_stopped: bool = False
    is_over: bool = False

    def news(self, random: Random, preemptions: float) -> list[JobNews]:
        job_id = self.submitted.job_id
        if not self.is_queued:
            self.is_queued = True
            return [queued(job_id)]
        if self.is_stopped and random.random() < 0.5:
            self.is_over = True
            return [cancelled(job_id)]
        if random.random() < preemptions:
            # It continues from a bundle of before.
            self.step, self.attempt = max(0, self.step - EVERY * random.randrange(3)), self.attempt + 1
            return []
        self.step += EVERY
        bundle = written(job_id, self.step, loss_at(self.submitted, self.step), attempt=self.attempt)
        if self.step < NUM_STEPS:
            return [bundle]
        self.is_over = True
        return [bundle, evaluating(self.submitted, attempt=self.attempt), succeeded(job_id)]


def topic_of(news: JobNews) -> type:
    """Bundles come on one topic, in their order, and all else on another."""
    return CheckpointWritten if isinstance(news, CheckpointWritten) else object


@dataclass
class World:
    spec: SweepSpec
    sweep: Sweep = field(init=False)
    trials: list[Trial] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    trainings: dict[str, Training] = field(default_factory=dict)
    spent: Decimal = Decimal(0)

    def __post_init__(self) -> None:
        command = SubmitSweep(sweep_id=SWEEP_ID, tenant=TENANT, dataset_id="ds-1", spec=self.spec)
        self.take(sweeps.submit(command, None, now=NOON))
        self.advance()

    def take(self, decision: Decision) -> None:
        self.sweep = decision.sweep
        known = {each.number: each for each in (*self.trials, *decision.trials)}
        self.trials = [known[number] for number in sorted(known)]
        self.messages += decision.messages
        for message in decision.messages:
            if isinstance(message, SubmitJob):
                assert message.job_id not in self.trainings, "a trial is submitted once"
                self.trainings[message.job_id] = Training(message)
            if isinstance(message, CancelJob):
                self.trainings[message.job_id].is_stopped = True

    def hear(self, *news: JobNews) -> None:
        for each in news:
            job_id = getattr(each, "job_id", None) or getattr(each, "subject_id", None)
            trial = next(trial for trial in self.trials if trial.job_id == job_id)
            self.take(sweeps.follow(self.sweep, trial, each, self.trials))
            self.advance()

    def advance(self) -> None:
        if stopped := sweeps.limit(self.sweep, self.trials, self.spent):
            self.take(stopped)
        while (number := sweeps.next_number(self.sweep, self.trials)) is not None:
            parameters = search.choose(self.spec, number, self.sweep.history_of(number, self.trials))
            self.take(sweeps.begin(self.sweep, number, parameters, self.trials))
        assert sum(each.is_open for each in self.trials) <= self.spec.concurrency
        if ended := sweeps.conclude(self.sweep, self.trials, self.spent):
            self.take(ended)

    def run(self, *, seed: int, preemptions: float = 0.0, lag: float = 0.0) -> "World":
        """Train to the end of the sweep. Topics are read in any order, and late with probability `lag`."""
        random, unread = Random(seed), defaultdict[tuple[str, type], list[JobNews]](list)
        while self.sweep.state not in sweeps.ENDED:
            running = [each for each in self.trainings.values() if not each.is_over]
            waiting = [key for key, news in unread.items() if news]
            assert running or waiting, f"nothing runs and the sweep is {self.sweep.state}"
            if running and (not waiting or random.random() < lag):
                training = random.choice(running)
                for each in training.news(random, preemptions):
                    unread[training.submitted.job_id, topic_of(each)].append(each)
            else:
                self.hear(unread[random.choice(waiting)].pop(0))
        return self

    def of(self, kind: type[Any]) -> list[Any]:
        return [each for each in self.messages if isinstance(each, kind)]

    @property
    def results(self) -> Sequence[tuple[object, ...]]:
        return [(each.number, each.parameters, each.state, each.valid_loss) for each in self.trials]

    @property
    def is_successful(self) -> bool:
        return self.sweep.state is SweepState.SUCCEEDED
