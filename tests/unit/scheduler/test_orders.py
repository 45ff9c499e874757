"""Across topics anything may come first. Within one story (a stream here) the order holds."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import pytest

from schemas.base import FailureClass, Message
from schemas.job import StopReason
from schemas.lifecycle import JobState
from services.scheduler.model import Job
from tests.builders import a_bundle, a_job, a_job_spec, a_stop
from tests.unit.scheduler import news
from tests.unit.scheduler.story import Story

EARLY = a_bundle(10)
OF_ATTEMPT = [
    news.started(),
    news.written(EARLY),
    news.stopped(EARLY),
    news.completed(),
    news.failed(FailureClass.INFRA),
    news.failed(FailureClass.USER),
    news.lost(),
    news.preempted(),
    news.released(),
    news.provisioning_failed(),
    news.provisioning_failed("engine_error"),
    news.verified(),
    news.corrupt(),
    news.verified(EARLY),
    news.corrupt(EARLY),
    news.pause(),
    news.cancel(),
    news.cancel("budget"),
]
OF_MODEL = [
    news.eval_passed(),
    news.eval_failed(),
    news.registered(),
    news.promoted(),
    news.promotion_refused(),
    news.promotion_refused("artifact"),
    news.stale(),
    news.base_registered(),
    news.approved(),
    news.deployment(),
    news.deployment(is_ready=False),
]


def merged(*streams: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Every order of all news that keeps each stream's own."""
    if not any(streams):
        yield ()
    for index, stream in enumerate(streams):
        if stream:
            rest = (*streams[:index], stream[1:], *streams[index + 1 :])
            yield from ((stream[0], *order) for order in merged(*rest))


def outcome(job: Job, *messages: Any) -> tuple[Any, ...]:
    after = Story(job).tell(*messages).job
    return after.state, after.run and after.run.stop, after.resume, after.requeues, after.evaluation.promoted


def name(*messages: Any) -> str:
    return " ".join(repr(each) for each in messages)


@pytest.mark.parametrize("state", [JobState.PROVISIONING, JobState.RUNNING])
def test_two_facts_commute_unless_each_alone_decides_something_else(state):
    job = a_job(state)
    decisive = [fact for fact in OF_ATTEMPT if Story(job).tell(fact).job.state is not state]
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
    for first, second in combinations([*OF_MODEL, news.released(), news.lost(), news.verified()], 2):
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
            ([news.started(), news.written(), news.completed()], [news.verified()], [news.released()]),
            JobState.EVALUATING,
            "JobEvaluating",
        ),
        (
            STOPPING_TO_PAUSE,
            (
                [news.written(EARLY), news.stopped(LATE)],
                [news.verified(EARLY), news.verified(LATE)],
                [news.released()],
            ),
            JobState.PAUSED,
            "JobPaused",
        ),
        (
            STOPPING_TO_PAUSE,
            ([news.written(), news.completed()], [news.verified()], [news.released()]),
            JobState.EVALUATING,
            "JobEvaluating",
        ),
        (
            STOPPING_TO_PAUSE,
            ([news.written(), news.completed()], [news.corrupt()], [news.released()]),
            JobState.PAUSED,
            "JobPaused",
        ),
        (
            STOPPING_TO_CANCEL,
            ([news.written(), news.completed()], [news.verified()], [news.released()]),
            JobState.CANCELLED,
            "JobCancelled",
        ),
        (
            a_job(JobState.RUNNING),
            (
                [news.written(EARLY), news.stopped(LATE)],
                [news.corrupt(LATE), news.verified(EARLY)],
                [news.preempted(), news.released()],
            ),
            JobState.QUEUED,
            "JobRequeued",
        ),
        (
            a_job(JobState.RUNNING),
            ([news.failed(), news.stopped()], [news.lost(), news.released()]),
            JobState.QUEUED,
            "JobRequeued",
        ),
        (
            a_job(JobState.RUNNING),
            ([news.completed()], [news.corrupt()], [news.released()]),
            JobState.QUEUED,
            "JobRequeued",
        ),
        (
            a_job(JobState.EVALUATING),
            (
                [news.eval_passed()],
                [news.registered(), news.promoted()],
                [news.approved()],
                [news.deployment()],
            ),
            JobState.SUCCEEDED,
            "JobSucceeded",
        ),
        (
            a_job(JobState.EVALUATING, spec=a_job_spec(auto_deploy=False)),
            ([news.eval_passed()], [news.registered(), news.promoted()]),
            JobState.SUCCEEDED,
            "JobSucceeded",
        ),
        (
            a_job(JobState.EVALUATING),
            ([news.eval_failed()], [news.registered()], [news.released()]),
            JobState.SUCCEEDED,
            "JobSucceeded",
        ),
        (
            a_job(JobState.EVALUATING),
            ([news.eval_passed()], [news.registered()], [news.promotion_refused()]),
            JobState.SUCCEEDED,
            "JobSucceeded",
        ),
    ],
)
def test_the_end_is_the_same_in_every_order(job, streams, state, last):
    ends = [Story(job).tell(*order) for order in merged(*streams)]
    assert len(ends) > 1
    for end in ends:
        assert (end.job.state, end.types[-1], end.types.count(last)) == (state, last, 1)
        assert gist(end.events[-1]) == gist(ends[0].events[-1])


def test_nothing_is_decided_before_the_last_of_them():
    streams = ([news.eval_passed()], [news.promoted()], [news.approved()], [news.deployment()])
    for order in merged(*streams):
        assert Story(a_job(JobState.EVALUATING)).tell(*order[:-1]).job.state is JobState.EVALUATING
