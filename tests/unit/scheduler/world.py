"""A small world around the scheduler: every other service as a few lines, topics that lag, faults by seed.

Each service reads the scheduler's history at its own pace and writes to its own topics; each topic keeps its
order, nothing else does. The real decisions run in the middle, through the same routing as in production.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from random import Random
from typing import Any

from schemas.base import BundleRef, FailureClass, Message
from schemas.job import JobEvaluating, JobScheduled, JobStopping
from schemas.lifecycle import TERMINAL, JobState
from schemas.node import NodesReleased, ProvisioningFailed
from schemas.specification import Resources
from services.scheduler.decide.candidate import Candidate
from services.scheduler.decide.decision import View
from services.scheduler.decide.ledger import Booking, Ledger
from services.scheduler.model import Deployment, Job
from shared.errors import Refused
from tests.builders import NOON, a_booking, a_bundle, a_dataset, a_job, a_job_spec, a_pool
from tests.unit.scheduler import incoming
from tests.unit.scheduler.grants import grants
from tests.unit.scheduler.job_history import History

AT_REST = TERMINAL | {JobState.PAUSED}
CLASSES = [FailureClass.INFRA, FailureClass.INTERNAL, FailureClass.NUMERIC, FailureClass.PREEMPTED]
Action = Callable[[], None]


@dataclass
class Try:
    """What is true of an attempt, whoever knows it."""

    job_id: str
    number: int
    step: int
    is_created: bool = False
    is_refused: bool = False
    stop_heard_by_engine: bool = False
    stop_heard_by_agent: bool = False
    has_started: bool = False
    is_closed: bool = False
    is_released: bool = False
    bundle: BundleRef | None = None


@dataclass
class World:
    seed: int
    num_jobs: int = 3
    calm: bool = False
    """No more faults and no more commands: what began must come to its end."""
    now: datetime = NOON
    topics: dict[str, deque[tuple[str, Any]]] = field(default_factory=lambda: defaultdict(deque))
    tries: dict[tuple[str, int], Try] = field(default_factory=dict)
    booked: dict[tuple[str, int], tuple[str, Booking]] = field(default_factory=dict)
    unjudged: deque[tuple[str, BundleRef]] = field(default_factory=deque)
    verified: set[tuple[str, BundleRef]] = field(default_factory=set)
    promoted: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.pools = (a_pool(nodes=2, devices_per_node=2), a_pool("cpu-on-demand", nodes=1))
        self.histories = {job.id: History(job) for job in map(self._submitted, range(self.num_jobs))}
        self.read = {
            (reader, job_id): 0 for reader in ("engine", "agent", "gate") for job_id in self.histories
        }
        for job_id in self.histories:
            self.say("dataset", job_id, a_dataset())

    def step(self) -> None:
        self.random.choice(self._possible())()

    @property
    def is_at_rest(self) -> bool:
        """Nothing is under way, nothing is held, and no job waits but for a person."""
        states = {history.job.state for history in self.histories.values()}
        return not any(self.topics.values()) and not self.booked and states <= AT_REST

    def say(self, topic: str, job_id: str, message: Any) -> None:
        if isinstance(message, Message):
            message = message.model_copy(update={"job_id": job_id})
        self.topics[topic].append((job_id, message))

    def _submitted(self, number: int) -> Job:
        nodes = self.random.choice([1, 1, 2])
        resources = Resources(nodes=nodes, devices_per_node=self.random.choice([1, 1, 2]))
        spec = a_job_spec(resources=resources, auto_deploy=self.random.random() < 0.7)
        return a_job(JobState.VALIDATING, id=f"ftjob-{number}", spec=spec)

    def _possible(self) -> list[Action]:
        actions: list[Action] = [partial(self._pass_time, self.random.choice([1, 5, 60]))]
        actions += [partial(self._deliver, topic) for topic, waiting in self.topics.items() if waiting] * 3
        actions += [
            partial(self._read, *reader)
            for reader, position in self.read.items()
            if position < len(self.histories[reader[1]].events)
        ]
        actions += [action for each in self.tries.values() for action in self._of_engine(each)]
        actions += [action for each in self.tries.values() for action in self._of_agent(each)]
        if self.unjudged:
            actions.append(self._judge)
        return actions if self.calm else [*actions, self._command]

    # The scheduler.

    def _deliver(self, topic: str) -> None:
        job_id, message = self.topics[topic].popleft()
        for _ in range(self.random.choice([1, 1, 1, 2])):
            self._apply(job_id, message)
        if isinstance(message, NodesReleased | ProvisioningFailed):
            self.booked.pop((job_id, message.attempt), None)
        self._start_waiting()

    def _pass_time(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)
        for history in self.histories.values():
            due = [timer for timer in history.timers if timer.at <= self.now]
            history.timers = [timer for timer in history.timers if timer.at > self.now]
            for timer in due:
                self._apply(history.job.id, timer.payload)
        self._start_waiting()

    def _apply(self, job_id: str, message: Any) -> None:
        history = self.histories[job_id]
        history.now, history.view = self.now, View(self.now, ledger=self._ledger())
        history.apply(message)

    def _start_waiting(self) -> None:
        waiting = [
            Candidate.of(history.job, queued_at=history.job.queued_at)
            for history in self.histories.values()
            if history.job.state is JobState.QUEUED and history.job.queued_at
        ]
        for grant in grants(waiting, self._ledger(), now=self.now):
            history = self.histories[grant.candidate.job_id]
            before = self.tries.get((history.job.id, history.job.attempt))
            assert before is None or before.is_released or before.is_refused, "two attempts are open"
            history.now = self.now
            history.schedule(grant.placement)
            place = grant.placement
            booking = a_booking(*place.machines, devices=place.taken_per_node, since=self.now)
            self.booked[history.job.id, history.job.attempt] = (place.pool, booking)

    def _ledger(self) -> Ledger:
        by_pool: dict[str, list[Booking]] = defaultdict(list)
        for pool, booking in self.booked.values():
            by_pool[pool].append(booking)
        for pool in self.pools:
            held = Counter[int]()
            for booking in by_pool[pool.name]:
                held.update(dict.fromkeys(booking.machines, booking.devices))
            too_many = {machine: n for machine, n in held.items() if n > pool.devices_per_node}
            assert not too_many, f"{pool.name} gives more devices than its machines have: {too_many}"
            assert held.keys() <= {*range(pool.nodes)}, f"{pool.name} gives machines that it has not: {held}"
        return Ledger(tuple(pool.with_bookings(by_pool[pool.name]) for pool in self.pools))

    def _command(self) -> None:
        job_id = self.random.choice(sorted(self.histories))
        history = self.histories[job_id]
        if self.random.random() < 0.8 and history.job.state is not JobState.PAUSED:
            return
        command = self.random.choice(
            [incoming.cancel, incoming.pause, incoming.resume, partial(incoming.cancel, "budget")]
        )
        try:
            self._apply(job_id, command().model_copy(update={"job_id": job_id}))
        except Refused:
            return
        self._start_waiting()

    # The other services.

    def _read(self, reader: str, job_id: str) -> None:
        event = self.histories[job_id].events[self.read[reader, job_id]]
        self.read[reader, job_id] += 1
        number = getattr(event, "attempt", 0)
        match event:
            case JobScheduled() if reader == "engine":
                resumed = event.resume.step if event.resume else 0
                self.tries[job_id, number] = Try(job_id, number, resumed)
            case JobStopping() if reader == "engine":
                self.tries[job_id, number].stop_heard_by_engine = True
            case JobEvaluating() if reader == "engine":
                self.tries[job_id, number].stop_heard_by_engine = True
            case JobStopping() if reader == "agent":
                self._heard_by_agent(job_id, number)
            case JobEvaluating() if reader == "gate":
                self._evaluate(job_id)

    def _heard_by_agent(self, job_id: str, number: int) -> None:
        if (job_id, number) in self.tries:
            self.tries[job_id, number].stop_heard_by_agent = True
        else:
            self.read["agent", job_id] -= 1

    def _of_engine(self, each: Try) -> list[Action]:
        if each.is_released:
            return []
        if not each.is_created:
            if each.stop_heard_by_engine:
                return [partial(self._release, each)]
            return [] if each.is_refused else [partial(self._create, each)]
        actions = []
        if each.stop_heard_by_engine or each.is_closed:
            actions.append(partial(self._release, each))
        if not self.calm and self.random.random() < 0.1:
            actions += [partial(self._preempt, each), partial(self._lose, each)]
        return actions

    def _create(self, each: Try) -> None:
        if not self.calm and self.random.random() < 0.2:
            each.is_refused = True
            code = self.random.choice(["no_capacity", "engine_error"])
            self.say("node", each.job_id, incoming.provisioning_failed(code, attempt=each.number))
        else:
            each.is_created = True

    def _release(self, each: Try) -> None:
        each.is_released = True
        self.say("node", each.job_id, incoming.released(attempt=each.number))

    def _preempt(self, each: Try) -> None:
        deadline = self.now + timedelta(seconds=self.random.choice([2, 30, 120]))
        self.say("node", each.job_id, incoming.preempted(attempt=each.number, deadline=deadline))

    def _lose(self, each: Try) -> None:
        self.say("node", each.job_id, incoming.lost(attempt=each.number))

    def _of_agent(self, each: Try) -> list[Action]:
        if each.is_closed:
            return []
        if each.is_released:
            return [partial(self._close_late, each)]
        if each.stop_heard_by_agent:
            return [partial(self._stop, each)]
        if not each.has_started:
            return [partial(self._start, each)] if each.is_created else []
        actions: list[Action] = [partial(self._save, each), partial(self._complete, each)]
        if not self.calm and self.random.random() < 0.1:
            actions += [partial(self._fail, each), partial(self._stop, each)]
        return actions

    def _start(self, each: Try) -> None:
        each.has_started = True
        self.say("training", each.job_id, incoming.started(attempt=each.number))

    def _save(self, each: Try) -> None:
        each.step += 10
        each.bundle = a_bundle(
            each.step, attempt=each.number, name=f"{each.job_id} {each.number} {each.step}"
        )
        self.unjudged.append((each.job_id, each.bundle))
        self.say("training", each.job_id, incoming.written(each.bundle, attempt=each.number))

    def _complete(self, each: Try) -> None:
        if each.bundle is None or self.random.random() < 0.7:
            self._save(each)
        assert each.bundle is not None
        self._close(each, incoming.completed(each.bundle, attempt=each.number))

    def _stop(self, each: Try) -> None:
        if each.has_started and self.random.random() < 0.5:
            self._save(each)
        self._close(each, incoming.stopped(each.bundle, attempt=each.number, last_step=each.step))

    def _fail(self, each: Try) -> None:
        failure_class = self.random.choice(CLASSES)
        self.say("training", each.job_id, incoming.failed(failure_class, attempt=each.number))
        self._close(each, incoming.stopped(attempt=each.number, last_step=each.step))

    def _close_late(self, each: Try) -> None:
        if not each.stop_heard_by_agent:
            self.say("training", each.job_id, incoming.failed(attempt=each.number))
        self._close(each, incoming.stopped(attempt=each.number, last_step=each.step))

    def _close(self, each: Try, fact: Message) -> None:
        each.is_closed = True
        self.say("training", each.job_id, fact)

    def _judge(self) -> None:
        job_id, bundle = self.unjudged.popleft()
        if self.random.random() < 0.15:
            self.say("checkpoint", job_id, incoming.corrupt(bundle))
        else:
            self.verified.add((job_id, bundle))
            self.say("checkpoint", job_id, incoming.verified(bundle))

    def _evaluate(self, job_id: str) -> None:
        """Evaluator, registry and serving at once; their topics still lag each other."""
        end = self.random.choice(
            ["served", "unserved", "silent", "blocked", "refused", "no artifact", "stale"]
        )
        if end == "no artifact":
            self.say("refusal", job_id, incoming.promotion_refused("artifact"))
            return
        self.say("model", job_id, incoming.registered())
        if end == "stale":
            self.say("base", job_id, incoming.stale())
        elif end == "blocked":
            self.say("eval", job_id, self.random.choice([incoming.eval_failed, incoming.eval_inconclusive])())
        else:
            self.say("eval", job_id, incoming.eval_passed())
            self._promote(job_id, end)

    def _promote(self, job_id: str, end: str) -> None:
        if end == "refused":
            self.say("refusal", job_id, incoming.promotion_refused())
            return
        self.promoted.add(job_id)
        self.say("model", job_id, incoming.promoted())
        if not self.histories[job_id].job.spec.auto_deploy:
            return
        self.say("slot", job_id, incoming.approved(generation=2))
        self.say("deployment", job_id, incoming.deployment(generation=1))
        if end != "silent":
            answer: Deployment = incoming.deployment(generation=2, is_ready=end == "served")
            self.say("deployment", job_id, answer)


def run(seed: int, *, steps: int = 150) -> World:
    """A random life of some jobs, then calm until all is said. Raises where it never comes to rest."""
    world = World(seed)
    for _ in range(steps):
        world.step()
    world.calm = True
    for _ in range(5_000):
        if world.is_at_rest:
            return world
        world.step()
    states = {job_id: str(history.job.state) for job_id, history in world.histories.items()}
    raise AssertionError(f"seed {seed}: not at rest: {states}, nodes held: {world.booked}")
