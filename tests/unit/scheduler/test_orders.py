"""Across topics anything may come first. Within one history (a stream here) the order holds."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import pytest

from schemas.base import FailureClass, Message
from schemas.job import StopReason
from schemas.lifecycle import JobState
from services.scheduler.model import Job
from tests.builders import a_bundle, a_job, a_job_spec, a_stop
from tests.unit.scheduler import incoming
from tests.unit.scheduler.job_history import History

EARLY = a_bundle(10)
OF_ATTEMPT = [
    incoming.started(),
    incoming.written(EARLY),
    incoming.stopped(EARLY),
    incoming.completed(),
    incoming.failed(FailureClass.INFRA),
    incoming.failed(FailureClass.USER),
    incoming.lost(),
    incoming.preempted(),
    incoming.released(),
    incoming.provisioning_failed(),
    incoming.provisioning_failed("engine_error"),
    incoming.verified(),
    incoming.corrupt(),
    incoming.verified(EARLY),
    incoming.corrupt(EARLY),
    incoming.pause(),
    incoming.cancel(),
    incoming.cancel("budget"),
]
OF_MODEL = [
    incoming.eval_passed(),
    incoming.eval_failed(),
    incoming.registered(),
    incoming.promoted(),
    incoming.promotion_refused(),
    incoming.promotion_refused("artifact"),
    incoming.stale(),
    incoming.base_registered(),
    incoming.approved(),
    incoming.deployment(),
    incoming.deployment(is_ready=False),
]


def merged(*streams: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Every order of all incoming that keeps each stream's own."""
    if not any(streams):
        yield ()
    for index, stream in enumerate(streams):
        if stream:
            rest = (*streams[:index], stream[1:], *streams[index + 1 :])
            yield from ((stream[0], *order) for order in merged(*rest))


def outcome(job: Job, *messages: Any) -> tuple[Any, ...]:
    after = History(job).apply(*messages).job
    return after.state, after.run and after.run.stop, after.resume, after.requeues, after.evaluation.promoted


def name(*messages: Any) -> str:
    return " ".join(repr(each) for each in messages)


@pytest.mark.parametrize("state", [JobState.PROVISIONING, JobState.RUNNING])
def test_two_facts_commute_unless_each_alone_decides_something_else(state):
    job = a_job(state)
    decisive = [fact for fact in OF_ATTEMPT if History(job).apply(fact).job.state is not state]
    for first, second in combinations(OF_ATTEMPT, 2):
        # Of two causes the one that comes first ends the attempt: both orders are legal.
        if first not in decisive or second not in decisive:
            assert outcome(job, first, second) == outcome(job, second, first), name(first, second)


@pytest.mark.parametrize(
    "stop",
    [
        a_stop(StopReason.PREEMPT),
        a_stop(StopReason.FAILURE),
        a_stop(StopReason.FAILURE, failure_class=FailureClass.USER),
        a_stop(StopReason.PAUSE),
        a_stop(StopReason.BUDGET),
        a_stop(StopReason.CANCEL),
    ],
    ids=lambda stop: f"{stop.reason}-{stop.failure_class}",
)
def test_while_stopping_all_pairs_commute(stop):
    job = a_job(JobState.STOPPING, stop=stop)
    for first, second in combinations(OF_ATTEMPT, 2):
        assert outcome(job, first, second) == outcome(job, second, first), name(first, second)


def test_while_evaluating_all_pairs_commute():
    job = a_job(JobState.EVALUATING)
    for first, second in combinations(
        [*OF_MODEL, incoming.released(), incoming.lost(), incoming.verified()], 2
    ):
        assert outcome(job, first, second)[0] is outcome(job, second, first)[0], name(first, second)


def gist(fact: Message) -> dict[str, Any]:
    """All but the sentence, which tells the order."""
    return fact.model_dump(exclude={"message"})


STOPPING_TO_PAUSE = a_job(JobState.STOPPING, stop=a_stop(StopReason.PAUSE))
STOPPING_TO_CANCEL = a_job(JobState.STOPPING, stop=a_stop(StopReason.CANCEL))
LATE = a_bundle(20)


@pytest.mark.parametrize(
    ("job", "streams", "state", "last"),
    [
        (
            a_job(JobState.PROVISIONING),
            (
                [incoming.started(), incoming.written(), incoming.completed()],
                [incoming.verified()],
                [incoming.released()],
            ),
            JobState.EVALUATING,
            "JobEvaluating",
        ),
        (
            STOPPING_TO_PAUSE,
            (
                [incoming.written(EARLY), incoming.stopped(LATE)],
                [incoming.verified(EARLY), incoming.verified(LATE)],
                [incoming.released()],
            ),
            JobState.PAUSED,
            "JobPaused",
        ),
        (
            STOPPING_TO_PAUSE,
            ([incoming.written(), incoming.completed()], [incoming.verified()], [incoming.released()]),
            JobState.EVALUATING,
            "JobEvaluating",
        ),
        (
            STOPPING_TO_PAUSE,
            ([incoming.written(), incoming.completed()], [incoming.corrupt()], [incoming.released()]),
            JobState.PAUSED,
            "JobPaused",
        ),
        (
            STOPPING_TO_CANCEL,
            ([incoming.written(), incoming.completed()], [incoming.verified()], [incoming.released()]),
            JobState.CANCELLED,
            "JobCancelled",
        ),
        (
            a_job(JobState.RUNNING),
            (
                [incoming.written(EARLY), incoming.stopped(LATE)],
                [incoming.corrupt(LATE), incoming.verified(EARLY)],
                [incoming.preempted(), incoming.released()],
            ),
            JobState.QUEUED,
            "JobRequeued",
        ),
        (
            a_job(JobState.RUNNING),
            ([incoming.failed(), incoming.stopped()], [incoming.lost(), incoming.released()]),
            JobState.QUEUED,
            "JobRequeued",
        ),
        (
            a_job(JobState.RUNNING),
            ([incoming.completed()], [incoming.corrupt()], [incoming.released()]),
            JobState.QUEUED,
            "JobRequeued",
        ),
        (
            a_job(JobState.EVALUATING),
            (
                [incoming.eval_passed()],
                [incoming.registered(), incoming.promoted()],
                [incoming.approved()],
                [incoming.deployment()],
            ),
            JobState.SUCCEEDED,
            "JobSucceeded",
        ),
        (
            a_job(JobState.EVALUATING, spec=a_job_spec(auto_deploy=False)),
            ([incoming.eval_passed()], [incoming.registered(), incoming.promoted()]),
            JobState.SUCCEEDED,
            "JobSucceeded",
        ),
        (
            a_job(JobState.EVALUATING),
            ([incoming.eval_failed()], [incoming.registered()], [incoming.released()]),
            JobState.SUCCEEDED,
            "JobSucceeded",
        ),
        (
            a_job(JobState.EVALUATING),
            ([incoming.eval_passed()], [incoming.registered()], [incoming.promotion_refused()]),
            JobState.SUCCEEDED,
            "JobSucceeded",
        ),
    ],
)
def test_the_end_is_the_same_in_every_order(job, streams, state, last):
    ends = [History(job).apply(*order) for order in merged(*streams)]
    assert len(ends) > 1
    for end in ends:
        assert (end.job.state, end.types[-1], end.types.count(last)) == (state, last, 1)
        assert gist(end.events[-1]) == gist(ends[0].events[-1])


def test_nothing_is_decided_before_the_last_of_them():
    streams = (
        [incoming.eval_passed()],
        [incoming.promoted()],
        [incoming.approved()],
        [incoming.deployment()],
    )
    for order in merged(*streams):
        assert History(a_job(JobState.EVALUATING)).apply(*order[:-1]).job.state is JobState.EVALUATING
