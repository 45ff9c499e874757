from datetime import timedelta

import pytest

from schemas.base import PriceClass
from schemas.specification import Resources, Tier
from services.scheduler.decide.queue import Candidate, grants, priority, why_waiting
from services.scheduler.model import JobState
from tests.builders import NOON, a_job, a_job_spec, a_ledger, a_pool

SPOT, ON_DEMAND = "cpu-spot", "cpu-on-demand"


def waiting(job_id="job-1", *, minutes=0.0, **changes):
    fields = {
        "job_id": job_id,
        "tenant": "acme",
        "tier": Tier.STANDARD,
        "queued_at": NOON - timedelta(minutes=minutes),
        "nodes": 1,
        "devices_per_node": 1,
        "price_class": "spot-first",
    }
    return Candidate(**fields | changes)


def started(candidates, ledger):
    return [(grant.job_id, grant.placement.pool) for grant in grants(candidates, ledger, now=NOON)]


class TestPriority:
    @pytest.mark.parametrize(
        ("candidate", "held", "expected"),
        [
            (waiting(), {}, 0.0),
            (waiting(minutes=25), {}, 2.5),
            (waiting(tier=Tier.PREMIUM), {}, 1.0),
            (waiting(minutes=5), {"acme": 1}, 0.0),
            (waiting(minutes=5), {"other": 1}, 0.5),
            (waiting(), {"acme": 5}, -1.0),
        ],
    )
    def test_is_tier_plus_age_minus_the_share_held(self, candidate, held, expected):
        ledger = a_ledger(a_pool(nodes=2), **held)
        assert priority(candidate, ledger, now=NOON) == pytest.approx(expected)

    def test_who_waited_twenty_minutes_outranks_every_newcomer(self):
        ledger = a_ledger(a_pool(nodes=2), acme=2)
        newcomer = waiting("job-2", tenant="other", tier=Tier.PREMIUM, minutes=0)
        oldest = waiting("job-1", minutes=20.1)
        assert priority(oldest, ledger, now=NOON) > priority(newcomer, ledger, now=NOON)

    def test_the_first_in_is_the_first_out_among_equals(self):
        candidates = [waiting("job-2", minutes=1), waiting("job-1", minutes=2)]
        assert started(candidates, a_ledger(a_pool(nodes=1))) == [("job-1", SPOT)]

    def test_premium_goes_before_standard_of_the_same_age(self):
        candidates = [waiting("job-1"), waiting("job-2", tier=Tier.PREMIUM)]
        assert started(candidates, a_ledger(a_pool(nodes=1))) == [("job-2", SPOT)]


class TestFairShare:
    def test_tenants_take_turns_for_free_nodes(self):
        greedy = [waiting(f"greedy-{n}", tenant="greedy", minutes=1) for n in range(4)]
        modest = [waiting("modest-1", tenant="modest")]
        assert started(greedy + modest, a_ledger(a_pool(nodes=2))) == [
            ("greedy-0", SPOT),
            ("modest-1", SPOT),
        ]

    def test_what_a_tenant_holds_already_counts(self):
        candidates = [waiting("job-1", minutes=1), waiting("job-2", tenant="other")]
        ledger = a_ledger(a_pool(nodes=4, booked=3), acme=3)
        assert started(candidates, ledger) == [("job-2", SPOT)]

    def test_age_outweighs_the_share_in_the_end(self):
        candidates = [waiting("job-1", minutes=11), waiting("job-2", tenant="other")]
        ledger = a_ledger(a_pool(nodes=4, booked=3), acme=4)
        assert started(candidates, ledger) == [("job-1", SPOT)]


class TestPools:
    BOTH = (a_pool(ON_DEMAND, price_per_hour=3), a_pool(SPOT, price_per_hour=1))

    @pytest.mark.parametrize(
        ("price_class", "pool"),
        [("spot-first", SPOT), (PriceClass.SPOT, SPOT), (PriceClass.ON_DEMAND, ON_DEMAND)],
    )
    def test_the_price_class_chooses(self, price_class, pool):
        assert started([waiting(price_class=price_class)], a_ledger(*self.BOTH)) == [("job-1", pool)]

    def test_spot_first_falls_back_to_on_demand(self):
        pools = (a_pool(ON_DEMAND), a_pool(SPOT, nodes=1, booked=1))
        assert started([waiting()], a_ledger(*pools)) == [("job-1", ON_DEMAND)]

    def test_spot_alone_waits(self):
        pools = (a_pool(ON_DEMAND), a_pool(SPOT, nodes=1, booked=1))
        assert started([waiting(price_class=PriceClass.SPOT)], a_ledger(*pools)) == []

    def test_of_one_class_the_cheapest_is_taken(self):
        pools = (a_pool("a-spot", price_per_hour=2), a_pool("b-spot", price_per_hour=1))
        assert started([waiting()], a_ledger(*pools)) == [("job-1", "b-spot")]

    def test_a_pool_by_name_is_the_only_one(self):
        assert started([waiting(pool=ON_DEMAND)], a_ledger(*self.BOTH)) == [("job-1", ON_DEMAND)]

    def test_nodes_with_too_few_devices_do_not_suit(self):
        pools = (a_pool(SPOT, devices_per_node=4), a_pool(ON_DEMAND, devices_per_node=8))
        assert started([waiting(devices_per_node=8)], a_ledger(*pools)) == [("job-1", ON_DEMAND)]

    def test_a_pool_that_shrank_under_its_attempts_has_nothing_free(self):
        assert started([waiting()], a_ledger(a_pool(nodes=1, booked=3))) == []


class TestGang:
    def test_a_gang_is_placed_in_one_pool_or_not_at_all(self):
        pools = (a_pool(SPOT, nodes=2, booked=1), a_pool(ON_DEMAND, nodes=2, booked=1))
        assert started([waiting(nodes=2)], a_ledger(*pools)) == []

    def test_each_grant_is_booked_before_the_next(self):
        candidates = [waiting(f"job-{n}", nodes=2, minutes=9 - n) for n in range(3)]
        assert started(candidates, a_ledger(a_pool(nodes=5))) == [("job-0", SPOT), ("job-1", SPOT)]

    def test_smaller_jobs_pass_a_gang_that_waits_since_a_short_time(self):
        candidates = [waiting("gang", nodes=2, minutes=19), waiting("small")]
        assert started(candidates, a_ledger(a_pool(nodes=2, booked=1))) == [("small", SPOT)]

    def test_after_twenty_minutes_a_gang_holds_its_pool(self):
        candidates = [waiting("gang", nodes=2, minutes=20), waiting("small")]
        assert started(candidates, a_ledger(a_pool(nodes=2, booked=1))) == []
        assert started(candidates, a_ledger(a_pool(nodes=2))) == [("gang", SPOT)]

    def test_of_several_pools_that_suit_it_a_gang_holds_the_one_that_it_prefers(self):
        pools = (a_pool(ON_DEMAND, nodes=2, booked=1), a_pool(SPOT, nodes=2, booked=1))
        candidates = [waiting("gang", nodes=2, minutes=20), waiting("small")]
        assert started(candidates, a_ledger(*pools)) == [("small", ON_DEMAND)]

    def test_a_gang_that_no_pool_can_ever_hold_holds_none(self):
        candidates = [waiting("gang", nodes=9, minutes=60), waiting("small")]
        assert started(candidates, a_ledger(a_pool(nodes=2))) == [("small", SPOT)]


class TestBackOff:
    def test_a_job_is_not_asked_for_before_its_time(self):
        early = waiting(not_before=NOON + timedelta(seconds=1))
        assert started([early], a_ledger()) == []
        assert started([waiting(not_before=NOON)], a_ledger()) == [("job-1", SPOT)]

    @pytest.mark.parametrize(
        ("seconds_ago", "changed_seconds_ago", "is_asked"),
        [(14, 60, False), (15, 60, True), (2, 1, True), (0.5, 0.1, False)],
        ids=["too early", "time is over", "the pool changed", "not twice within a second"],
    )
    def test_a_pool_without_capacity_is_left_alone_until_it_changes_or_for_a_time(
        self, seconds_ago, changed_seconds_ago, is_asked
    ):
        pool = a_pool(changed_at=NOON - timedelta(seconds=changed_seconds_ago))
        candidate = waiting(turned_away={SPOT: NOON - timedelta(seconds=seconds_ago)})
        assert bool(started([candidate], a_ledger(pool))) is is_asked

    def test_meanwhile_it_falls_back_and_others_may_ask(self):
        candidates = [waiting("job-1", turned_away={SPOT: NOON}), waiting("job-2")]
        ledger = a_ledger(a_pool(SPOT), a_pool(ON_DEMAND))
        assert started(candidates, ledger) == [("job-1", ON_DEMAND), ("job-2", SPOT)]


class TestWhyWaiting:
    @pytest.mark.parametrize(
        ("candidate", "pool", "reason"),
        [
            (
                waiting(nodes=3),
                a_pool(nodes=2),
                "no pool can hold 3 node(s) with 1 device(s) each (spot-first); known: cpu-spot",
            ),
            (
                waiting(nodes=2),
                a_pool(booked=1),
                "waits for 2 node(s) with 1 device(s) each (spot-first): cpu-spot has 1 of 2 nodes free",
            ),
            (waiting(), a_pool(), "its turn for 1 node(s) with 1 device(s) each (spot-first)"),
            (
                waiting(not_before=NOON + timedelta(seconds=61)),
                a_pool(),
                "backs off until 12:01:01 UTC",
            ),
            (
                waiting(turned_away={SPOT: NOON}),
                a_pool(),
                "1 node(s) with 1 device(s) each (spot-first): the engine had no capacity in cpu-spot, asked again soon",
            ),
        ],
    )
    def test_it_names_what_is_missing(self, candidate, pool, reason):
        assert why_waiting(candidate, a_ledger(pool), now=NOON) == reason


def test_a_candidate_is_what_the_queue_must_know_of_a_job():
    resources = Resources(nodes=2, devices_per_node=4, price_class=PriceClass.SPOT, pool="h100")
    job = a_job(
        JobState.QUEUED,
        spec=a_job_spec(resources=resources, tier=Tier.PREMIUM),
        not_before=NOON,
        turned_away={"h100": NOON},
    )
    expected = Candidate("ftjob-1", "acme", Tier.PREMIUM, NOON, 2, 4, "spot", "h100", NOON, {"h100": NOON})
    assert Candidate.of(job, queued_at=NOON) == expected


def test_of_a_thousand_waiting_jobs_as_many_start_as_there_are_nodes():
    candidates = [waiting(f"job-{n:04}", tenant=f"tenant-{n % 50}", minutes=n / 60) for n in range(1000)]
    made = grants(candidates, a_ledger(a_pool(nodes=20)), now=NOON)
    assert len(made) == 20
