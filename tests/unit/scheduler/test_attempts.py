"""What an attempt that ends leaves for the next: how often, when, and from which bundle."""

from datetime import timedelta

import pytest

from schemas.base import FailureClass
from schemas.job import JobRequeued, JobScheduled, StopReason
from schemas.lifecycle import JobState
from schemas.specification import Resources
from services.scheduler.model import Attempt, Evaluation
from tests.builders import NOON, a_bundle, a_job, a_job_spec, a_placement, a_stop, an_evaluation
from tests.unit.scheduler import incoming
from tests.unit.scheduler.job_history import History

VALIDATING, QUEUED, PROVISIONING, RUNNING, STOPPING, PAUSED, EVALUATING, SUCCEEDED, FAILED, CANCELLED = (
    JobState
)


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def test_an_attempt_begins_with_nothing_known_of_it_but_its_place():
    resources = Resources(max_run_seconds=600, grace_seconds=30)
    job = a_job(QUEUED, spec=a_job_spec(resources=resources), evaluation=an_evaluation())
    place = a_placement(machines=(3,))
    history = History(job).schedule(place)
    assert history.job.run == Attempt(
        number=1,
        placement=place,
        resume=None,
        scheduled_at=NOON,
        start_deadline=NOON + timedelta(minutes=5),
        ends_by=NOON + seconds(630),
    )
    assert history.job.evaluation == Evaluation()
    assert history.last(JobScheduled).machines == (3,)


class TestBudgets:
    @pytest.mark.parametrize(
        ("failure_class", "budget"), [(FailureClass.INFRA, 5), (FailureClass.INTERNAL, 2)]
    )
    def test_a_class_is_requeued_as_often_as_its_budget_allows(self, failure_class, budget):
        history = History(a_job(QUEUED))
        for attempt in range(1, budget + 2):
            history.schedule().apply(
                incoming.failed(failure_class, attempt=attempt),
                incoming.released(attempt=attempt),
                incoming.stopped(attempt=attempt),
            )
        assert history.types.count("JobRequeued") == budget
        assert history.types[-1] == "JobFailed"

    def test_progress_refills_that_of_infra(self):
        history = History(a_job(QUEUED))
        for attempt in range(1, 20):
            bundle = a_bundle(10, attempt=attempt)
            history.schedule().apply(
                incoming.written(bundle, attempt=attempt),
                incoming.verified(bundle),
                incoming.failed(attempt=attempt),
                incoming.released(attempt=attempt),
                incoming.stopped(attempt=attempt),
            )
        assert history.types.count("JobRequeued") == 19
        assert history.last(JobRequeued).not_before == history.now

    def test_progress_does_not_refill_that_of_our_own_faults(self):
        history = History(a_job(QUEUED))
        for attempt in range(1, 4):
            bundle = a_bundle(10, attempt=attempt)
            history.schedule().apply(
                incoming.written(bundle, attempt=attempt),
                incoming.verified(bundle),
                incoming.failed(FailureClass.INTERNAL, attempt=attempt),
                incoming.released(attempt=attempt),
                incoming.stopped(attempt=attempt),
            )
        assert history.types[-1] == "JobFailed"

    def test_an_absence_of_the_platform_spends_none_and_backs_off_up_to_five_minutes(self):
        history = History(a_job(QUEUED))
        waits = []
        for attempt in range(1, 100):
            history.schedule().apply(
                incoming.failed(FailureClass.PLATFORM, attempt=attempt),
                incoming.released(attempt=attempt),
                incoming.stopped(attempt=attempt),
            )
            waits.append(history.last(JobRequeued).not_before - history.now)
        assert waits[:7] == [seconds(each) for each in (0, 5, 15, 35, 75, 155, 300)]
        assert set(waits[7:]) == {seconds(300)}

    def test_a_node_that_kafka_did_not_hear_spends_none_whatever_was_said_of_it_before(self):
        history = History(a_job(QUEUED)).schedule()
        fenced = incoming.lost().model_copy(update={"failure_class": FailureClass.PLATFORM})
        history.apply(incoming.failed(), fenced, incoming.released(), incoming.stopped())
        fact = history.last(JobRequeued)
        assert (fact.failure_class, fact.message) == ("platform", "node n-0 was lost: pid gone")
        assert FailureClass.INFRA not in history.job.requeues

    def test_preemption_is_free_but_backs_off_after_three_in_ten_minutes(self):
        history = History(a_job(QUEUED))
        waits = []
        for attempt in range(1, 6):
            history.later(seconds=1).schedule().apply(
                incoming.preempted(attempt=attempt),
                incoming.released(attempt=attempt),
                incoming.stopped(attempt=attempt),
            )
            waits.append(history.last(JobRequeued).not_before - history.now)
        assert waits == [seconds(0), seconds(0), seconds(60), seconds(120), seconds(240)]

    @pytest.mark.parametrize("order", [(77, 40), (40, 77)])
    def test_of_two_notices_the_earlier_end_counts(self, order):
        notices = [incoming.preempted(deadline=NOON + seconds(each)) for each in order]
        history = History(a_job(JobState.RUNNING)).apply(*notices)
        assert history.job.run.facts.preemption.deadline == NOON + seconds(40)

    def test_a_preemption_long_ago_does_not_count(self):
        job = a_job(STOPPING, preempted_at=(NOON - timedelta(minutes=11), NOON - timedelta(minutes=10)))
        history = History(job).apply(incoming.released(), incoming.stopped())
        assert (history.last(JobRequeued).not_before, history.job.preempted_at) == (NOON, (NOON,))

    def test_the_first_requeue_after_a_failure_comes_at_once_then_it_backs_off(self):
        stop = a_stop(StopReason.FAILURE)
        waits = [
            History(a_job(STOPPING, stop=stop, requeues={FailureClass.INFRA: before}))
            .apply(incoming.released(), incoming.stopped())
            .last(JobRequeued)
            .not_before
            - NOON
            for before in range(4)
        ]
        assert waits == [seconds(0), seconds(5), seconds(15), seconds(35)]


class TestResumePoint:
    @pytest.mark.parametrize("state", [PROVISIONING, RUNNING, STOPPING, QUEUED, PAUSED])
    def test_it_rises_with_a_verdict_on_a_bundle_of_any_attempt(self, state):
        older, newer = a_bundle(90, attempt=1), a_bundle(5, attempt=2)
        history = History(a_job(state, attempt=3)).apply(incoming.verified(newer), incoming.verified(older))
        assert history.job.resume == newer

    def test_the_next_attempt_starts_from_it(self):
        history = (
            History(a_job(QUEUED))
            .apply(incoming.verified(a_bundle(10)), incoming.corrupt(a_bundle(20)))
            .schedule()
        )
        assert (history.last(JobScheduled).resume, history.job.run.resume) == (a_bundle(10), a_bundle(10))

    def test_a_long_attempt_remembers_but_the_bundles_that_matter(self):
        history = History(a_job(RUNNING))
        for step in range(1, 500):
            verdict = incoming.corrupt if step % 7 == 0 else incoming.verified
            messages = (incoming.written(a_bundle(step)), verdict(a_bundle(step)))
            history.apply(*messages[:: 1 if step % 2 else -1])
        job = history.apply(incoming.written(a_bundle(500))).job
        assert (job.verified, job.corrupt) == ({a_bundle(499)}, frozenset())
        assert job.facts.named == {a_bundle(499), a_bundle(500)}

    def test_what_an_attempt_ends_with_may_have_been_judged_long_ago(self):
        early, last = a_bundle(10), a_bundle(20)
        job = History(a_job(RUNNING)).apply(
            incoming.written(early), incoming.verified(early), incoming.written(last), incoming.verified(last)
        )
        assert job.apply(incoming.completed(last)).job.state is EVALUATING

    @pytest.mark.parametrize("state", [VALIDATING, EVALUATING])
    def test_elsewhere_a_verdict_is_recorded_as_ignored(self, state):
        history = History(a_job(state)).apply(incoming.verified(a_bundle(999)))
        assert history.ignored == [f"the job is {state}"]
