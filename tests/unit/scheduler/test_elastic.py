"""Jobs whose attempts have as many nodes as are free: how many they begin with, and when they stop to have more."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from schemas.base import CapacityType, FailureClass
from schemas.elastic import sizes_of
from schemas.identity import config_hash
from schemas.job import JobRequeued, JobScheduled, JobStopping, StopReason
from schemas.lifecycle import JobState
from schemas.specification import Resources
from services.scheduler.decide import growth
from services.scheduler.decide.candidate import Candidate
from services.scheduler.decide.decision import Policy, View
from services.scheduler.decide.growth import ElasticAttempt, could_have
from services.scheduler.decide.queue import why_waiting
from tests.builders import (
    NOON,
    a_booking,
    a_bundle,
    a_job,
    a_job_spec,
    a_ledger,
    a_placement,
    a_pool,
    a_sha,
)
from tests.unit.scheduler import incoming
from tests.unit.scheduler.grants import grants
from tests.unit.scheduler.job_history import History
from tests.unit.scheduler.test_queue import ON_DEMAND, SPOT, waiting

ELASTIC = Resources(nodes=4, min_nodes=1)


def elastic(job_id="elastic", **changes):
    return waiting(job_id, **{"nodes": 4, "min_nodes": 1} | changes)


def placed(candidates, ledger):
    granted = grants(candidates, ledger, now=NOON)
    return [(each.candidate.job_id, each.placement.pool, each.placement.nodes) for each in granted]


class TestStart:
    @pytest.mark.parametrize(("free", "nodes"), [(1, 1), (2, 2), (3, 3), (4, 4), (9, 4)])
    def test_it_takes_what_is_there_and_no_more_than_the_most(self, free, nodes):
        assert placed([elastic()], a_ledger(a_pool(nodes=9, booked=9 - free))) == [("elastic", SPOT, nodes)]

    def test_it_waits_for_the_least_alone(self):
        pool = a_pool(nodes=4, booked=3)
        assert placed([elastic(min_nodes=2)], a_ledger(pool)) == []
        expected = (
            "waits for 2 whole nodes with 1 device each (spot-first): cpu-spot has 1 of 4 nodes wholly free"
        )
        assert why_waiting(elastic(min_nodes=2), a_ledger(pool), now=NOON) == expected

    def test_a_pool_smaller_than_the_most_will_do(self):
        assert placed([elastic()], a_ledger(a_pool(nodes=2))) == [("elastic", SPOT, 2)]
        assert placed([waiting(nodes=4)], a_ledger(a_pool(nodes=2))) == []

    def test_the_preferred_pool_comes_before_the_larger_one(self):
        ledger = a_ledger(a_pool(nodes=1), a_pool(ON_DEMAND, nodes=4))
        assert placed([elastic()], ledger) == [("elastic", SPOT, 1)]

    def test_machines_of_which_others_hold_a_part_are_for_one_node_alone(self):
        pool = a_pool(nodes=3, devices_per_node=2, bookings=[a_booking(0), a_booking(1)])
        assert placed([elastic()], a_ledger(pool)) == [("elastic", SPOT, 1)]

    def test_it_takes_no_more_than_its_tenant_may_have(self):
        ledger = replace(a_ledger(a_pool(nodes=9), acme=1), device_limits={"acme": 4})
        assert placed([elastic()], ledger) == [("elastic", SPOT, 3)]

    def test_it_takes_no_more_than_the_pool_gives_one_job(self):
        assert placed([elastic()], a_ledger(a_pool(nodes=9, max_devices_per_job=2))) == [("elastic", SPOT, 2)]

    def test_it_leaves_what_is_kept_for_a_larger_job_in_front(self):
        pool = a_pool(nodes=6, bookings=[a_booking(0, 1, 2, ends_by=NOON + timedelta(minutes=5))])
        large = waiting("large", nodes=5, tenant="other", minutes=30)
        assert placed([large, elastic()], a_ledger(pool)) == [("elastic", SPOT, 1)]

    def test_what_it_takes_counts_for_its_tenants_share(self):
        ours = [elastic(minutes=2), waiting("second", minutes=2)]
        others = waiting("other", tenant="other")
        pool = a_pool(nodes=6)
        assert placed([*ours, others], a_ledger(pool)) == [
            ("elastic", SPOT, 4),
            ("other", SPOT, 1),
            ("second", SPOT, 1),
        ]


def test_the_attempt_names_the_nodes_that_it_has():
    job = a_job(JobState.QUEUED, spec=a_job_spec(resources=ELASTIC))
    scheduled = History(job).schedule(a_placement(nodes=2, machines=(0, 1))).last(JobScheduled)
    assert scheduled.nodes == 2
    assert scheduled.spec.resources == Resources(nodes=2)
    assert scheduled.config_hash == job.config_hash


def test_the_least_is_of_the_experiment():
    def hashed(resources):
        return config_hash(a_job_spec(resources=resources), a_sha("dataset"))

    assert len({hashed(Resources(nodes=4, min_nodes=least)) for least in (None, 1, 2)}) == 3


def running(*machines, resources=ELASTIC, **changes):
    least, *larger = sizes_of(resources)
    candidate = replace(waiting("elastic"), resources=least, larger=tuple(larger), **changes)
    return ElasticAttempt(candidate, SPOT, a_booking(*machines))


class TestMore:
    def could_have(self, *attempts, nodes=4, queued=(), others=(), **pool):
        bookings = [each.booking for each in attempts] + list(others)
        held = {"acme": sum(len(each.booking.machines) for each in attempts)}
        ledger = a_ledger(a_pool(nodes=nodes, bookings=bookings, **pool), a_pool(ON_DEMAND, nodes=9), **held)
        return could_have(attempts, queued, ledger, now=NOON)

    @pytest.mark.parametrize(
        ("nodes", "size"), [(1, {}), (2, {"elastic": 2}), (4, {"elastic": 4}), (9, {"elastic": 4})]
    )
    def test_it_could_have_what_is_free_beside_its_own(self, nodes, size):
        assert self.could_have(running(0), nodes=nodes) == size

    def test_what_others_hold_is_not_free(self):
        assert self.could_have(running(0), others=[a_booking(2)]) == {"elastic": 3}
        assert self.could_have(running(0), others=[a_booking(1, 2, 3)]) == {}

    def test_one_that_has_the_most_could_have_no_more(self):
        assert self.could_have(running(0, 1, 2, 3), nodes=9) == {}

    def test_no_more_where_somebody_waits_who_could_use_the_pool(self):
        for queued in (waiting("other"), waiting("backs off", not_before=NOON + timedelta(minutes=1))):
            assert self.could_have(running(0), queued=[queued]) == {}
        larger = waiting("more than are free", nodes=4)
        assert self.could_have(running(0), queued=[larger]) == {}

    def test_who_could_not_use_the_pool_stops_nobody(self):
        for asked in ({"nodes": 5}, {"pool": "other"}, {"capacity_type": CapacityType.ON_DEMAND}):
            assert self.could_have(running(0), queued=[waiting("other", **asked)]) == {"elastic": 4}

    def test_no_more_than_its_tenant_may_have(self):
        attempt = running(0)
        ledger = a_ledger(a_pool(nodes=9, bookings=[attempt.booking]), acme=2)
        limited = replace(ledger, device_limits={"acme": 3})
        assert could_have([attempt], [], limited, now=NOON) == {"elastic": 2}

    def test_nodes_that_were_given_back_meanwhile_are_no_reason(self):
        assert could_have([running(0)], [], a_ledger(a_pool(nodes=4)), now=NOON) == {}


def a_running_job(*, newest=300, resumed_at=0, minutes=10.0, **changes):
    """Of 600 steps, of which it trained those from `resumed_at` to `newest` in so many minutes."""
    job = a_job(spec=a_job_spec(resources=ELASTIC), **changes)
    job = replace(job, plan=replace(job.plan, num_steps=600), verified=frozenset({a_bundle(step=newest)}))
    began = NOON - timedelta(minutes=minutes)
    return job.with_run(scheduled_at=began, resume=a_bundle(step=resumed_at) if resumed_at else None)


class TestWorthwhile:
    @pytest.mark.parametrize(
        ("job", "is_worthwhile"),
        [
            (a_running_job(newest=300), True),  # 10 minutes are left
            (a_running_job(newest=450), False),  # 3.3
            (a_running_job(newest=450, resumed_at=300), True),  # 10
            (a_running_job(newest=300, resumed_at=300), False),  # nobody knows: it has left nothing yet
            (replace(a_running_job(), verified=frozenset()), False),
        ],
    )
    def test_a_job_that_is_nearly_done_is_left_alone(self, job, is_worthwhile):
        assert growth.is_worthwhile(job, View(NOON)) == is_worthwhile

    def test_how_near_is_a_setting(self):
        assert not growth.is_worthwhile(a_running_job(), View(NOON, Policy(grow_after=timedelta(minutes=11))))


class TestGrowth:
    def stopping(self):
        history = History(a_running_job())
        history._apply(growth.grow(history.job, 4, history.view))
        return history

    def test_it_is_stopped_with_a_reason_of_its_own_and_its_grace(self):
        fact = self.stopping().last(JobStopping)
        assert (fact.reason, fact.failure_class) == (StopReason.GROW, None)
        assert fact.deadline == NOON + timedelta(seconds=30)
        assert fact.message == "continues on 4 nodes in place of 1: they are free, and nobody waits"

    def test_it_is_queued_at_once_and_nothing_counts_against_it(self):
        history = self.stopping()
        last = a_bundle(step=310)
        history.apply(incoming.stopped(bundle=last), incoming.verified(last), incoming.released())
        fact = history.last(JobRequeued)
        assert (fact.failure_class, fact.not_before, fact.resume) == (FailureClass.RESIZED, NOON, last)
        assert history.job.state is JobState.QUEUED
        assert set(history.job.requeues) == {FailureClass.RESIZED}
        assert history.job.preempted_at == ()
        for each in (FailureClass.INFRA, FailureClass.INTERNAL, FailureClass.OOM):
            assert history.job.requeued(each) == 0

    def test_it_grows_as_often_as_it_takes_without_a_pause(self):
        job = replace(a_running_job(), requeues={FailureClass.RESIZED: 40})
        history = History(job)
        history._apply(growth.grow(job, 2, history.view))
        history.apply(incoming.stopped(), incoming.released())
        assert history.last(JobRequeued).not_before == NOON

    def test_a_notice_that_comes_meanwhile_is_the_reason_then(self):
        history = self.stopping().apply(incoming.preempted(deadline=NOON + timedelta(seconds=9)))
        assert history.last(JobStopping).reason is StopReason.PREEMPT
        assert history.last(JobStopping).deadline == NOON + timedelta(seconds=9)

    def test_one_that_completes_meanwhile_is_complete(self):
        history = self.stopping().apply(incoming.completed(), incoming.verified(incoming.FINAL))
        assert history.job.state is JobState.EVALUATING

    def test_a_cancellation_meanwhile_ends_the_job(self):
        history = self.stopping().apply(incoming.cancel(), incoming.stopped(), incoming.released())
        assert history.job.state is JobState.CANCELLED


def test_after_a_loss_it_takes_what_is_there_at_once():
    job = a_running_job().with_run(placement=a_placement(nodes=4, machines=(0, 1, 2, 3)))
    history = History(job).apply(incoming.lost(), incoming.stopped(bundle=a_bundle(step=310)))
    history.apply(incoming.verified(a_bundle(step=310)), incoming.released())
    candidate = Candidate.of(history.job, queued_at=NOON)
    left = a_ledger(a_pool(nodes=3, price_per_hour=Decimal(1)))
    [grant] = grants([candidate], left, now=NOON)
    history.schedule(grant.placement)
    scheduled = history.last(JobScheduled)
    assert (scheduled.attempt, scheduled.nodes, scheduled.resume) == (2, 3, a_bundle(step=310))
