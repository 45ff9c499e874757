"""The fleet and its clock: jobs come, get machines, train, are interrupted, and end.

Who starts is a policy's; where machines are free is the scheduler's ledger, and which machines are cordoned the
provisioner decides, for all policies. Every TICK seconds what happened is taken in, and then the policy starts whom
it will. Times are seconds from the beginning.

What a job costs beside its training: START before its first step, pauses for checkpoints, after an interruption
without notice what it had trained since the last one and the time until somebody knows, and START again.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Protocol

from bench.fleet.incidents import REPAIR_SECONDS, Incident, IncidentKind
from bench.fleet.workload import DEVICES_OF_MACHINE, PoolSize, SimulatedJob, Sizing
from schemas.base import DeviceKind
from schemas.placement import best_fit
from services.provisioner import machines, pools
from services.provisioner.machines import FAILURES_WITHIN, Failure
from services.provisioner.model import Pool as Capacity
from services.scheduler.decide.candidate import Candidate, longest_hold
from services.scheduler.decide.ledger import Booking, DeviceType, Ledger, Pool, pool_of
from services.scheduler.decide.queue import GRANTS_OF_A_ROUND
from services.scheduler.model import Placement

TICK = 60.0
LOOK_ANYWAY = 120.0
"""Estimates change as time passes: a policy is asked again after so long though nothing happened."""
START = 60.0
"""From its machines to the first step: 16.5 s were measured for 8B on one H200, with nodes that were there."""
CHECKPOINT_EVERY = 60.0
PAUSE = 0.128
"""Of training for a checkpoint, as measured (docs/performance.md)."""
TRAINED = CHECKPOINT_EVERY / (CHECKPOINT_EVERY + PAUSE)
"""Part of the time after the start in which it trains."""
NOTICED = 60.0
"""From the end of a machine until its job's other machines are free: 30 s of silence, 30 s to stop."""
NOTICE = 30.0
"""A machine that is taken back with notice is held so long; what was trained until then is kept."""
CORDON_AFTER = 3
BEGINNING = datetime(2026, 1, 5, tzinfo=UTC)

Machine = tuple[str, int]
"""Pool and number."""


def moment(at: float) -> datetime:
    return BEGINNING + timedelta(seconds=at)


class Policy(Protocol):
    """Who starts next."""

    def add(self, candidate: Candidate) -> None: ...
    def remove(self, candidate: Candidate) -> None: ...
    @property
    def is_waited_for(self) -> bool: ...
    def starts(self, ledger: Ledger, now: datetime) -> Iterable[tuple[Candidate, Placement]]:
        """Return who starts where, at most GRANTS_OF_A_ROUND; then it is called again."""
        ...


@dataclass
class Run:
    """A job on its way."""

    job: SimulatedJob
    candidate: Candidate
    trained: float = 0.0
    """Seconds of training that are kept."""
    queued_since: float = 0.0
    waited: float = 0.0
    attempt: int = 0
    placement: Placement | None = None
    price: Decimal = Decimal(0)
    since: float = 0.0
    ends_at: float = 0.0
    interrupted_at: float | None = None
    first_start: float | None = None
    ended_at: float | None = None

    @property
    def held(self) -> int:
        """Devices that its attempt holds."""
        placement = self.placement
        return 0 if placement is None else len(placement.machines) * placement.taken_per_node

    def trained_by(self, at: float) -> float:
        """Seconds that its attempt has trained at a time, kept or not."""
        return max(0.0, min(at - self.since - START, (self.job.seconds - self.trained) / TRAINED)) * TRAINED


@dataclass
class Spent:
    """Device seconds of a run of the fleet, and what they cost."""

    useful: float = 0.0
    starting: float = 0.0
    checkpoints: float = 0.0
    lost: float = 0.0
    """Trained and not kept, or held when nothing trained any more."""
    dollars: float = 0.0

    @property
    def booked(self) -> float:
        return self.useful + self.starting + self.checkpoints + self.lost


@dataclass
class Sample:
    """The fleet at a moment."""

    at: float
    usable: int
    booked: int
    waiting_jobs: int
    waiting_devices: int


@dataclass
class Simulation:
    sizing: Sizing
    jobs: Sequence[SimulatedJob]
    incidents: Sequence[Incident]
    policy: Policy
    end: float
    sample_every: float = 600.0
    runs: dict[str, Run] = field(default_factory=dict)
    spent: Spent = field(default_factory=Spent)
    samples: list[Sample] = field(default_factory=list)
    interruptions: Counter[str] = field(default_factory=Counter)
    capacities: dict[str, Capacity] = field(default_factory=dict)
    bookings: dict[str, dict[str, Booking]] = field(default_factory=lambda: defaultdict(dict))
    held: dict[str, Counter[DeviceType]] = field(default_factory=lambda: defaultdict(Counter))
    on_machine: dict[Machine, set[str]] = field(default_factory=lambda: defaultdict(set))
    broken: set[Machine] = field(default_factory=set)
    cordoned: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    failures: dict[Machine, list[Failure]] = field(default_factory=lambda: defaultdict(list))
    last_failures: dict[str, list[Failure]] = field(default_factory=dict)
    pools: dict[str, Pool] = field(default_factory=dict)
    _changed: set[str] = field(default_factory=set)
    _timers: list[tuple[float, int, "Due"]] = field(default_factory=list)
    _num_timers: int = 0
    _num_waiting: int = 0
    _waiting_devices: int = 0

    def run(self) -> "Simulation":
        for size in self.sizing.pools:
            self._announce(_capacity_of(size))
        coming, striking = iter(self.jobs), iter(self.incidents)
        job, incident = next(coming, None), next(striking, None)
        at, last_look, last_sample = 0.0, 0.0, 0.0
        while at < self.end:
            at += TICK
            has_news = False
            while self._timers and self._timers[0][0] <= at:
                due, _, timer = heapq.heappop(self._timers)
                has_news |= self._on_due(timer, due)
            while job is not None and job.submitted_at <= at:
                self._submit(job)
                has_news, job = True, next(coming, None)
            while incident is not None and incident.at <= at:
                self._strike(incident)
                has_news, incident = True, next(striking, None)
            if self.policy.is_waited_for and (has_news or at - last_look >= LOOK_ANYWAY):
                self._look(at)
                last_look = at
            if at - last_sample >= self.sample_every:
                self._sample(at)
                last_sample = at
        self._close()
        return self

    def _look(self, at: float) -> None:
        while True:
            starts = [*self.policy.starts(self.ledger, moment(at))]
            are_placed = all(
                self._start(self.runs[candidate.job_id], placement, at) for candidate, placement in starts
            )
            # Else one is elsewhere, and those behind it were placed as if it were not.
            if are_placed and len(starts) < GRANTS_OF_A_ROUND:
                return

    @property
    def ledger(self) -> Ledger:
        for name in self._changed:
            self.pools[name] = self.pools[name].with_bookings(self.bookings[name].values())
        self._changed.clear()
        return Ledger(tuple(self.pools.values()), self.held)

    def _submit(self, job: SimulatedJob) -> None:
        candidate = Candidate(
            job_id=job.id,
            tenant=job.tenant,
            tier=job.tier,
            queued_at=moment(job.submitted_at),
            resources=job.resources,
            longest=longest_hold(job.resources),
        )
        self.runs[job.id] = Run(job, candidate)
        self._enqueue(self.runs[job.id], job.submitted_at)

    def _enqueue(self, run: Run, at: float) -> None:
        run.queued_since = at
        self._num_waiting += 1
        self._waiting_devices += run.job.devices
        self.policy.add(run.candidate)

    def _start(self, run: Run, granted: Placement, at: float) -> bool:
        """Return whether it has the machines that the policy chose."""
        self.policy.remove(run.candidate)
        placement = self._elsewhere(run, granted)
        if placement is None:  # the machines that are left are those that it must not have again
            run.candidate = replace(run.candidate, no_capacity_at={granted.pool: moment(at)})
            self.policy.add(run.candidate)
            return False
        self._num_waiting -= 1
        self._waiting_devices -= run.job.devices
        run.waited += at - run.queued_since
        run.attempt += 1
        run.placement, run.since, run.interrupted_at = placement, at, None
        run.price = self.capacities[placement.pool].price_per_device_hour
        if run.first_start is None:
            run.first_start = at
        self._book(run, at)
        run.ends_at = at + START + (run.job.seconds - run.trained) / TRAINED
        self._at(run.ends_at, Ended(run.job.id, run.attempt))
        for machine in placement.machines:
            if (placement.pool, machine) in self.broken:
                self._at(at + START, Failed(run.job.id, run.attempt, (placement.pool, machine)))
        return placement == granted

    def _elsewhere(self, run: Run, placement: Placement) -> Placement | None:
        """As the provisioner has it: not where its attempt before has failed, if the pool has enough others."""
        capacity = self._capacity(placement.pool)
        failures = self.last_failures.get(run.job.id, [])
        avoided = (
            {*map(int, machines.avoided(capacity, failures, nodes=placement.nodes))} if failures else set()
        )
        if not avoided & {*placement.machines}:
            return placement
        free = self.ledger.by_name[placement.pool].free
        left = {number: devices for number, devices in free.items() if number not in avoided}
        chosen = best_fit(left, nodes=placement.nodes, devices=placement.taken_per_node)
        return None if chosen is None else replace(placement, machines=chosen)

    def _capacity(self, name: str) -> Capacity:
        return replace(self.capacities[name], cordoned=tuple(sorted(self.cordoned[name])))

    def _book(self, run: Run, at: float) -> None:
        placement = run.placement
        assert placement is not None, "what is booked has a place"
        now = moment(at)
        booking = Booking(placement.machines, placement.taken_per_node, now, run.candidate.ends_by(now))
        self.bookings[placement.pool][run.job.id] = booking
        self.held[run.job.tenant][self.pools[placement.pool].device_type] += run.held
        self._changed.add(placement.pool)
        for machine in placement.machines:
            self.on_machine[placement.pool, machine].add(run.job.id)

    def _release(self, run: Run, at: float, *, kept: float, trained: float) -> None:
        """End the attempt. kept: seconds of what it trained that count; trained: all that it trained."""
        placement = run.placement
        assert placement is not None, "who releases machines has some"
        starting = min(START, at - run.since)
        checkpoints = trained / TRAINED - trained
        held = at - run.since
        self.spent.useful += run.held * kept
        self.spent.starting += run.held * starting
        self.spent.checkpoints += run.held * checkpoints
        self.spent.lost += run.held * max(0.0, held - starting - checkpoints - kept)
        self.spent.dollars += run.held * held / 3600 * float(run.price)
        run.trained += kept
        self.held[run.job.tenant][self.pools[placement.pool].device_type] -= run.held
        del self.bookings[placement.pool][run.job.id]
        self._changed.add(placement.pool)
        for machine in placement.machines:
            self.on_machine[placement.pool, machine].discard(run.job.id)
        run.placement = None

    def _strike(self, incident: Incident) -> None:
        machine = (incident.pool, incident.machine)
        if incident.machine in self.capacities[incident.pool].drained:
            return  # it is away already
        if incident.kind is IncidentKind.RECLAIMED:
            self._drain(machine)
            self._at(incident.until, Returned(machine))
        if incident.kind is IncidentKind.BROKEN:
            self.broken.add(machine)
        for job_id in sorted(self.on_machine[machine]):
            self._interrupt(self.runs[job_id], incident.at, machine, incident.kind)

    def _interrupt(self, run: Run, at: float, machine: Machine, kind: IncidentKind) -> None:
        """Its training ends now; its machines are free once somebody has noticed."""
        if run.interrupted_at is not None:
            return
        run.interrupted_at = at
        self.interruptions[kind] += 1
        is_noticed = kind is IncidentKind.RECLAIMED
        if not is_noticed:
            self._record(run, at, machine)
        self._at(at + (NOTICE if is_noticed else NOTICED), Stopped(run.job.id, run.attempt, is_noticed))

    def _record(self, run: Run, at: float, machine: Machine) -> None:
        """Keep the failure of a machine, and cordon it where the provisioner would."""
        name, number = machine
        node = f"{run.job.id}-{run.attempt}-{number}"
        failure = Failure(node, name, str(number), (), run.job.id, run.attempt, moment(at), "node lost")
        since = moment(at) - FAILURES_WITHIN
        of_machine = [each for each in self.failures[machine] if each.failed_at > since] + [failure]
        self.failures[machine] = of_machine
        self.last_failures[run.job.id] = [failure]
        if machines.cordon_after(self._capacity(name), str(number), of_machine) is not None:
            self.cordoned[name].add(str(number))
            self.interruptions["cordoned"] += 1
            self._drain(machine)
            self._at(at + REPAIR_SECONDS, Returned(machine))

    def _drain(self, machine: Machine) -> None:
        name, number = machine
        self._announce(pools.on_drained(self.capacities[name], number))

    def _announce(self, capacity: Capacity) -> None:
        """As the provisioner announces a pool, and the scheduler takes it in."""
        self.capacities[capacity.name] = capacity
        self.pools[capacity.name] = pool_of(capacity.capacity, now=BEGINNING)
        self._changed.add(capacity.name)

    def _on_due(self, timer: "Due", at: float) -> bool:
        """Return whether the policy has reason to look."""
        if isinstance(timer, Returned):
            self._return(timer.machine)
            return True
        run = self.runs[timer.job_id]
        if run.attempt != timer.attempt or run.placement is None:
            return False
        match timer:
            case Failed(machine=machine):
                self._interrupt(run, at, machine, IncidentKind.BROKEN)
                return False
            case Stopped(is_noticed=is_noticed):
                self._stop(run, at, is_noticed=is_noticed)
            case Ended():
                if run.interrupted_at is not None:
                    return False
                left = run.job.seconds - run.trained
                self._release(run, at, kept=left, trained=left)
                run.ended_at = at
                self.last_failures.pop(run.job.id, None)
        return True

    def _stop(self, run: Run, at: float, *, is_noticed: bool) -> None:
        assert run.interrupted_at is not None, "who stops was interrupted"
        trained = run.trained_by(at if is_noticed else run.interrupted_at)
        every = CHECKPOINT_EVERY
        kept = trained if is_noticed else trained // every * every
        self._release(run, at, kept=kept, trained=trained)
        if run.job.seconds - run.trained <= 0:
            run.ended_at = at
            return
        self._enqueue(run, at)

    def _return(self, machine: Machine) -> None:
        name, number = machine
        pool = self.capacities[name]
        self.broken.discard(machine)
        self.cordoned[name].discard(str(number))
        self.failures.pop(machine, None)
        drained = tuple(each for each in pool.drained if each != number)
        self._announce(replace(pool, nodes=pool.nodes + 1, drained=drained))

    def _at(self, at: float, timer: "Due") -> None:
        self._num_timers += 1
        heapq.heappush(self._timers, (at, self._num_timers, timer))

    def _sample(self, at: float) -> None:
        usable = sum(pool.nodes for pool in self.capacities.values()) * DEVICES_OF_MACHINE
        booked = sum(counter.total() for counter in self.held.values())
        self.samples.append(Sample(at, usable, booked, self._num_waiting, self._waiting_devices))

    def _close(self) -> None:
        """Count what runs at the end, and what waits."""
        for run in self.runs.values():
            if run.placement is not None:
                trained = run.trained_by(self.end if run.interrupted_at is None else run.interrupted_at)
                self._release(run, self.end, kept=trained, trained=trained)
            elif run.ended_at is None:
                run.waited += self.end - run.queued_since

    def still_waiting(self) -> Iterator[Run]:
        return (run for run in self.runs.values() if run.ended_at is None and run.placement is None)


def _capacity_of(size: PoolSize) -> Capacity:
    return Capacity(
        name=size.name,
        capacity_type=size.capacity_type,
        nodes=size.machines,
        file_nodes=size.machines,
        devices_per_node=DEVICES_OF_MACHINE,
        price_per_device_hour=Decimal(size.price_per_device_hour),
        device=DeviceKind.CUDA,
        accelerator=size.accelerator,
        backend="cluster",
        cordon_after_failures=CORDON_AFTER,
    )


@dataclass(frozen=True)
class Ended:
    job_id: str
    attempt: int


@dataclass(frozen=True)
class Failed:
    """It started on a machine that is broken."""

    job_id: str
    attempt: int
    machine: Machine


@dataclass(frozen=True)
class Stopped:
    job_id: str
    attempt: int
    is_noticed: bool


@dataclass(frozen=True)
class Returned:
    machine: Machine


Due = Ended | Failed | Stopped | Returned
