"""Invariants of jobs and their attempts: I5, I6, I8 and I13."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ops.doctor.finding import Finding
from ops.doctor.history import Entry, History, Job, Limits
from schemas.base import BundleRef
from schemas.checkpoint import CheckpointVerified
from schemas.job import JobFact, JobPaused, JobRequeued, JobScheduled, JobStageCompleted
from schemas.lifecycle import FIRST, NEXT, STATE_AFTER, TERMINAL
from schemas.node import NodesReleased
from schemas.topics import JOB_EVENTS, NODE_EVENTS, TRAINING_EVENTS
from schemas.training import (
    AttemptMessage,
    CheckpointWritten,
    TrainingCompleted,
    TrainingResumed,
    TrainingStopped,
)

VERDICTS_WITHIN = timedelta(minutes=9)
"""A minute less than the scheduler waits for verdicts once the nodes of an attempt are gone."""
WAITS_FOR_OTHERS = frozenset({"queued", "paused", *TERMINAL})
"""States in which a job may stay: it waits for capacity, for a person, or for nothing."""


def fenced(history: History, limits: Limits) -> Iterator[Finding]:
    """I5: once an attempt is known, nothing of an earlier one is accepted; its last fact is its last."""
    for job_id, stream in history.streams(JOB_EVENTS.name).items():
        yield from _attempts_of_job(job_id, stream)
    for job_id, stream in history.streams(TRAINING_EVENTS.name).items():
        yield from _facts_of_attempts(job_id, stream)
    for job_id, stream in history.streams(NODE_EVENTS.name).items():
        yield from _released_once(job_id, stream)


def _attempts_of_job(job_id: str, stream: Iterable[Entry]) -> Iterator[Finding]:
    current: int | None = None
    for entry in stream:
        if entry.sequence == 1:
            current = 0
        attempt = getattr(entry.message, "attempt", None)
        if not isinstance(entry.message, JobFact) or attempt is None:
            continue
        is_next = isinstance(entry.message, JobScheduled)
        expected = attempt if current is None else current + is_next
        if attempt != expected:
            yield _of(entry, f"attempt {attempt}", f"attempt {expected}")
        current = max(attempt, current or 0)


def _facts_of_attempts(job_id: str, stream: Iterable[Entry]) -> Iterator[Finding]:
    newest, ended = 0, 0
    for entry in stream:
        fact = entry.message
        if not isinstance(fact, AttemptMessage):
            continue
        if fact.attempt < newest:
            yield _of(
                entry, f"attempt {fact.attempt}", f"attempt {newest} or later, which was reported before"
            )
        elif fact.attempt == ended:
            yield _of(entry, f"a fact of attempt {ended}", "none after its last fact")
        if isinstance(fact, CheckpointWritten) and fact.bundle.attempt != fact.attempt:
            yield _of(entry, f"a bundle of attempt {fact.bundle.attempt}", f"one of attempt {fact.attempt}")
        newest = max(newest, fact.attempt)
        if isinstance(fact, TrainingStopped | TrainingCompleted):
            ended = fact.attempt


def _released_once(job_id: str, stream: Iterable[Entry]) -> Iterator[Finding]:
    released: set[int] = set()
    for entry in stream:
        attempt = getattr(entry.message, "attempt", None)
        if attempt in released:
            yield _of(entry, f"a fact of attempt {attempt}", "none after its NodesReleased")
        if isinstance(entry.message, NodesReleased):
            released.add(entry.message.attempt)


def legal(history: History, limits: Limits) -> Iterator[Finding]:
    """I6: jobs move only as the state machine allows, nothing follows a terminal state, and tables agree."""
    sequences = history.kernels["scheduler"].sequences if "scheduler" in history.kernels else {}
    for job_id, entries in history.streams(JOB_EVENTS.name).items():
        stream = [entry for entry in entries if isinstance(entry.message, JobFact)]
        yield from _illegal_moves(stream)
        is_all = bool(entries) and entries[-1].sequence == sequences.get((JOB_EVENTS.name, job_id))
        if stream and is_all and (job := history.snapshot.jobs.get(job_id)):
            yield from _disagreement(job, stream[-1])


def _illegal_moves(stream: list[Entry]) -> Iterator[Finding]:
    last: type[JobFact] | None = None
    for entry in stream:
        fact = type(entry.message)
        assert issubclass(fact, JobFact), "only facts of jobs are looked at"
        allowed = NEXT[last] if last else {FIRST} if entry.sequence == 1 else {fact}
        if fact not in allowed:
            expected = " or ".join(sorted(each.type for each in allowed)) or "nothing"
            yield _of(entry, f"{fact.type} after {last.type if last else 'nothing'}", expected)
        last = fact


def _disagreement(job: Job, last: Entry) -> Iterator[Finding]:
    fact = type(last.message)
    assert issubclass(fact, JobFact), "only facts of jobs are looked at"
    if job.state != STATE_AFTER[fact]:
        actual = f"state {job.state} after {fact.type} ({last.location})"
        yield Finding(f"scheduler.job {job.job_id}", actual, f"state {STATE_AFTER[fact]}")


@dataclass(frozen=True)
class _Bundles:
    """What is known of one job's bundles."""

    named: frozenset[BundleRef]
    """Announced by the attempts, each of which gets a verdict before the attempt is over."""
    verified: Mapping[BundleRef, datetime | None]
    """When; None where that is not in the topic any more."""

    def since(self, attempt: int) -> "_Bundles":
        """Return the bundles of a stage, which begins with this attempt."""
        return replace(self, named=frozenset(each for each in self.named if each.attempt >= attempt))


NONE = _Bundles(frozenset(), {})


def resumed_from_newest(history: History, limits: Limits) -> Iterator[Finding]:
    """I8: a job continues from its newest verified bundle, and from nothing that was not verified."""
    bundles = _bundles(history)
    released = {
        (entry.message.job_id, entry.message.attempt): entry.time
        for entry in history.of_type(NodesReleased)
        if isinstance(entry.message, NodesReleased)
    }
    for stream in history.streams(JOB_EVENTS.name).values():
        yield from _resumed_in_stream(stream, bundles, released)
    yield from _fell_behind(history)
    yield from _resumed_elsewhere(history)
    yield from _ends_beyond_bundle(history)


def _resumed_in_stream(
    stream: Sequence[Entry],
    bundles: Mapping[str, _Bundles],
    released: Mapping[tuple[str, int], datetime | None],
) -> Iterator[Finding]:
    first_attempt = 1
    for entry in stream:
        fact = entry.message
        if isinstance(fact, JobStageCompleted):
            first_attempt = fact.stage.first_attempt
        if not isinstance(fact, JobRequeued | JobPaused | JobScheduled):
            continue
        known = bundles.get(fact.job_id, NONE).since(first_attempt)
        writer = fact.resume.job_id if fact.resume else None
        yield from _not_verified(entry, fact, bundles.get(writer or fact.job_id, NONE))
        if not isinstance(fact, JobScheduled) and _had_its_verdicts(entry, fact, released):
            yield from _older_than_newest(entry, fact, known)


def _bundles(history: History) -> Mapping[str, _Bundles]:
    named: dict[str, set[BundleRef]] = {}
    verified: dict[str, dict[BundleRef, datetime | None]] = {}
    for entry in history.of_type(CheckpointWritten, TrainingStopped, TrainingCompleted):
        fact = entry.message
        if isinstance(fact, CheckpointWritten | TrainingStopped | TrainingCompleted) and fact.bundle:
            named.setdefault(fact.job_id, set()).add(fact.bundle)
    for entry in history.of_type(CheckpointVerified):
        if isinstance(entry.message, CheckpointVerified):
            verified.setdefault(entry.message.job_id, {})[entry.message.bundle] = entry.time
    for checkpoint in history.snapshot.checkpoints:
        if checkpoint.state in ("verified", "expiring", "expired"):
            verified.setdefault(checkpoint.job_id, {}).setdefault(checkpoint.bundle)
    return {
        job_id: _Bundles(frozenset(named.get(job_id, ())), verified.get(job_id, {}))
        for job_id in named.keys() | verified.keys()
    }


def _not_verified(
    entry: Entry, fact: JobRequeued | JobPaused | JobScheduled, known: _Bundles
) -> Iterator[Finding]:
    if fact.resume is None:
        return
    own = fact.resume.model_copy(update={"job_id": None})
    if own not in known.verified:
        yield _of(entry, f"resume from {_name(fact.resume)}, which nobody verified", "a verified bundle")


def _had_its_verdicts(
    entry: Entry,
    fact: JobRequeued | JobPaused,
    released: Mapping[tuple[str, int], datetime | None],
) -> bool:
    """Not one whose verdicts the scheduler gave up waiting for."""
    gone_at = released.get((fact.job_id, fact.attempt))
    return gone_at is not None and entry.time is not None and entry.time < gone_at + VERDICTS_WITHIN


def _older_than_newest(entry: Entry, fact: JobRequeued | JobPaused, known: _Bundles) -> Iterator[Finding]:
    usable = [
        bundle
        for bundle, time in known.verified.items()
        if bundle in known.named and bundle.attempt <= fact.attempt and _is_before(time, entry.time)
    ]
    newest = max(usable, key=lambda bundle: bundle.age, default=None)
    if newest is not None and (fact.resume is None or fact.resume.age < newest.age):
        actual = f"resume from {_name(fact.resume)}"
        yield _of(entry, actual, f"{_name(newest)}, the newest verified bundle")


def _fell_behind(history: History) -> Iterator[Finding]:
    """What an attempt begins from is never older than what was known when the job was last queued or paused."""
    for stream in history.streams(JOB_EVENTS.name).values():
        known: BundleRef | None = None
        for entry in stream:
            fact = entry.message
            if isinstance(fact, JobStageCompleted):
                known = None  # the next stage has bundles of its own
            if not isinstance(fact, JobRequeued | JobPaused | JobScheduled):
                continue
            if known is not None and (fact.resume is None or fact.resume.age < known.age):
                yield _of(entry, f"resume from {_name(fact.resume)}", f"{_name(known)} or newer")
            known = fact.resume or known


def _resumed_elsewhere(history: History) -> Iterator[Finding]:
    """A training that resumed did so at the step of the bundle that its attempt was given."""
    given = {
        (entry.message.job_id, entry.message.attempt): entry.message.resume
        for entry in history.of_type(JobScheduled)
        if isinstance(entry.message, JobScheduled)
    }
    for entry in history.of_type(TrainingResumed):
        fact = entry.message
        assert isinstance(fact, TrainingResumed), "of_type() filters"
        if (fact.job_id, fact.attempt) not in given:
            continue
        bundle = given[fact.job_id, fact.attempt]
        if bundle is None or bundle.step != fact.certificate.step:
            yield _of(entry, f"resumed at step {fact.certificate.step}", f"from {_name(bundle)}")


def _ends_beyond_bundle(history: History) -> Iterator[Finding]:
    for entry in history.of_type(TrainingCompleted):
        fact = entry.message
        assert isinstance(fact, TrainingCompleted), "of_type() filters"
        if fact.bundle.step != fact.last_step:
            actual = f"completed at step {fact.last_step} with {_name(fact.bundle)}"
            yield _of(entry, actual, f"a bundle of step {fact.last_step}")


def live(history: History, limits: Limits) -> Iterator[Finding]:
    """I13: every job that is under way moves, every timer fires, no task is set aside."""
    signs = _last_signs(history)
    for job in history.snapshot.jobs.values():
        since = signs.get(job.job_id)
        if job.state in WAITS_FOR_OTHERS:
            continue
        if since is None or since < history.read_at - limits.stalled_after:
            yield Finding(
                f"job {job.job_id}, attempt {job.attempt}",
                f"{job.state}, nothing heard of it since {since or 'the topics begin'}",
                f"a sign of it every {limits.stalled_after.total_seconds():g} s",
            )
    yield from _unapplied(history)
    yield from _timers(history, limits)
    yield from _tasks(history)


def _unapplied(history: History) -> Iterator[Finding]:
    """Two processes of the scheduler that do not lock what both write would leave such a job."""
    for job_id, known in history.snapshot.unapplied.items():
        job = history.snapshot.jobs[job_id]
        where = f"job {job_id}, attempt {job.attempt}"
        yield Finding(where, f"{job.state}, although {known}", "the state that follows from it")


def _last_signs(history: History) -> Mapping[str, datetime]:
    last: dict[str, datetime] = {}
    for entry in history.entries:
        if entry.job_id and entry.time is not None:
            last[entry.job_id] = max(entry.time, last.get(entry.job_id, entry.time))
    return last


def _timers(history: History, limits: Limits) -> Iterator[Finding]:
    for service, kernel in history.kernels.items():
        late = [due for due in kernel.timers_due if due[1] < history.read_at - limits.grace]
        if late:
            kind, since = min(late, key=lambda due: due[1])
            yield Finding(
                f"{service}.timer",
                f"{len(late)} timers overdue, the first {kind} since {since}",
                f"each fired within {limits.grace.total_seconds():g} s",
            )


def _tasks(history: History) -> Iterator[Finding]:
    for service, kernel in history.kernels.items():
        for kind, key, error in kernel.tasks_set_aside:
            expected = "an end: repair what it says and start the service again"
            yield Finding(f"{service}.task {kind} {key}", f"set aside: {error}", expected)


def _of(entry: Entry, actual: str, expected: str) -> Finding:
    return Finding(f"{entry.location} {entry.type} of {entry.key}", actual, expected)


def _is_before(time: datetime | None, other: datetime | None) -> bool:
    return time is not None and other is not None and time <= other


def _name(bundle: BundleRef | None) -> str:
    return f"bundle {bundle.attempt}/{bundle.step}" if bundle else "nothing"
