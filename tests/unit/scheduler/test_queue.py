import random
from collections import defaultdict
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.base import CapacityType, DeviceKind
from schemas.elastic import sizes_of
from schemas.lifecycle import JobState
from schemas.specification import Resources, Tier
from services.scheduler.decide.candidate import Candidate
from services.scheduler.decide.ledger import DeviceType, Ledger, Pool
from services.scheduler.decide.queue import WEIGHTS, Round, rank, why_waiting
from tests.builders import NOON, a_booking, a_job, a_job_spec, a_ledger, a_pool
from tests.unit.scheduler.grants import grants, grants_one_by_one

SPOT, ON_DEMAND = "cpu-spot", "cpu-on-demand"


def waiting(job_id="job-1", *, minutes=0.0, **changes):
    """`changes`: of the candidate or of the resources that it asks for."""
    fields = {
        "job_id": job_id,
        "tenant": "acme",
        "tier": Tier.STANDARD,
        "queued_at": NOON - timedelta(minutes=minutes),
    }
    asked = {name: value for name, value in changes.items() if name in Resources.model_fields}
    others = {name: value for name, value in changes.items() if name not in asked}
    least, *larger = sizes_of(Resources(**asked))
    return Candidate(**fields | others, resources=least, larger=tuple(larger))


def started(candidates, ledger):
    return [(grant.candidate.job_id, grant.placement.pool) for grant in grants(candidates, ledger, now=NOON)]


def test_a_grant_names_what_the_nodes_compute_on():
    ledger = a_ledger(a_pool(SPOT, device=DeviceKind.CUDA))
    [grant] = grants([waiting()], ledger, now=NOON)
    assert grant.placement.device is DeviceKind.CUDA


class TestFairShare:
    def test_tenants_take_turns_for_free_nodes(self):
        greedy = [waiting(f"greedy-{n}", tenant="greedy", minutes=60) for n in range(4)]
        modest = [waiting("modest-1", tenant="modest")]
        assert started(greedy + modest, a_ledger(a_pool(nodes=2))) == [
            ("greedy-0", SPOT),
            ("modest-1", SPOT),
        ]

    def test_what_a_tenant_holds_already_counts_however_long_it_waits(self):
        candidates = [waiting("job-1", minutes=10_000), waiting("job-2", tenant="other")]
        ledger = a_ledger(a_pool(nodes=4, booked=3), acme=3)
        assert started(candidates, ledger) == [("job-2", SPOT)]

    @pytest.mark.parametrize(("standard", "first"), [(1, "job-1"), (2, "job-2"), (3, "job-2")])
    def test_a_premium_tenant_may_hold_twice_as_much(self, standard, first):
        candidates = [waiting("job-1"), waiting("job-2", tenant="other", tier=Tier.PREMIUM, minutes=-30)]
        ledger = a_ledger(a_pool(nodes=16, booked=15), acme=standard, other=3)
        assert started(candidates, ledger) == [(first, SPOT)]

    def test_the_first_in_is_the_first_out_of_a_tenant(self):
        candidates = [waiting("job-2", minutes=1), waiting("job-1", minutes=2)]
        assert started(candidates, a_ledger(a_pool(nodes=1))) == [("job-1", SPOT)]

    @pytest.mark.parametrize(("minutes", "first"), [(9, "job-2"), (11, "job-1")])
    def test_a_premium_job_is_ten_minutes_ahead_of_equal_shares(self, minutes, first):
        candidates = [waiting("job-1", minutes=minutes), waiting("job-2", tenant="other", tier=Tier.PREMIUM)]
        assert started(candidates, a_ledger(a_pool(nodes=1))) == [(first, SPOT)]

    def test_a_pool_that_shrank_leaves_shares_above_all_that_there_is(self):
        candidates = [waiting("job-1", minutes=1), waiting("job-2", tenant="other")]
        ledger = a_ledger(a_pool(nodes=1), acme=3, other=2)
        assert started(candidates, ledger) == [("job-2", SPOT)]


class TestDominantShare:
    LARGE = a_pool("large-spot", nodes=20, device=DeviceKind.CUDA, device_memory_bytes=80 * 2**30)
    SMALL = a_pool("small-spot", nodes=4, device=DeviceKind.CUDA, device_memory_bytes=24 * 2**30)

    @given(
        st.lists(st.builds(a_pool, st.text(), nodes=st.integers(0, 99), devices_per_node=st.integers(1, 8))),
        st.integers(0, 999),
        st.sampled_from(Tier),
    )
    def test_of_one_type_it_is_the_devices_of_all_that_there_are(self, pools, held, tier):
        ledger = Ledger(tuple(pools), {"acme": {DeviceType(): held}})
        there_are = sum(pool.nodes * pool.devices_per_node for pool in pools)
        share, *_ = rank(waiting(tier=tier), ledger)
        assert share == (held / there_are / WEIGHTS[tier] if there_are else 0.0)

    @given(st.integers(0, 20), st.integers(0, 4))
    def test_of_two_types_it_is_the_greater_part(self, of_large, of_small):
        held = {"large-spot": of_large, "small-spot": of_small}
        share = a_ledger(self.LARGE, self.SMALL, acme=held).share_of("acme")
        assert share == max(of_large / 20, of_small / 4)

    def test_what_is_the_same_at_another_price_counts_together(self):
        on_demand = replace(
            self.SMALL, name="small-on-demand", nodes=12, capacity_type=CapacityType.ON_DEMAND
        )
        held = {"small-spot": 3, "small-on-demand": 1}
        assert a_ledger(self.LARGE, self.SMALL, on_demand, acme=held).share_of("acme") == 4 / 16

    def test_a_type_of_which_there_is_nothing_left_counts_for_nothing(self):
        gone = replace(self.SMALL, nodes=0)
        assert a_ledger(self.LARGE, gone, acme={"large-spot": 5, "small-spot": 4}).share_of("acme") == 5 / 20

    @pytest.mark.parametrize(("nodes", "share"), [(1, 3 / 8), (2, 1.0)])
    def test_a_node_alone_is_held_by_its_devices_and_a_gang_with_all(self, nodes, share):
        small = a_pool(
            "small-spot", nodes=2, devices_per_node=4, device=DeviceKind.CUDA, device_memory_bytes=1
        )
        asked = waiting(nodes=nodes, devices_per_node=3)
        ledger = a_ledger(self.LARGE, small).with_booking(small, asked, NOON)
        assert ledger.share_of("acme") == share


class TestPools:
    BOTH = (a_pool(ON_DEMAND, price_per_hour=3), a_pool(SPOT, price_per_hour=1))

    @pytest.mark.parametrize(
        ("capacity_type", "pool"),
        [("spot-first", SPOT), (CapacityType.SPOT, SPOT), (CapacityType.ON_DEMAND, ON_DEMAND)],
    )
    def test_the_capacity_type_chooses(self, capacity_type, pool):
        assert started([waiting(capacity_type=capacity_type)], a_ledger(*self.BOTH)) == [("job-1", pool)]

    def test_spot_first_falls_back_to_on_demand(self):
        pools = (a_pool(ON_DEMAND), a_pool(SPOT, nodes=1, booked=1))
        assert started([waiting()], a_ledger(*pools)) == [("job-1", ON_DEMAND)]

    def test_spot_alone_waits(self):
        pools = (a_pool(ON_DEMAND), a_pool(SPOT, nodes=1, booked=1))
        assert started([waiting(capacity_type=CapacityType.SPOT)], a_ledger(*pools)) == []

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


def busy(*minutes: float | None, nodes: int) -> Pool:
    """Nodes that are held for so many minutes more at most; None: without a limit."""
    ends = [None if each is None else NOON + timedelta(minutes=each) for each in minutes]
    since = NOON - timedelta(hours=1)
    bookings = [a_booking(number, since=since, ends_by=end) for number, end in enumerate(ends)]
    return a_pool(nodes=nodes, bookings=bookings)


class TestBackfill:
    """A gang of two that has waited for long, on pools that have one node free."""

    def started_beside_the_gang(self, pool, *others, nodes=2):
        gang = waiting("gang", tenant="first", nodes=nodes, minutes=20)
        return [job_id for job_id, _ in started([gang, *others], a_ledger(pool))]

    @pytest.mark.parametrize(("minutes", "is_started"), [(30, True), (31, False), (None, False)])
    def test_who_ends_before_the_gang_has_its_nodes_starts(self, minutes, is_started):
        small = waiting("small", longest=None if minutes is None else timedelta(minutes=minutes))
        assert bool(self.started_beside_the_gang(busy(30, nodes=2), small)) is is_started

    def test_the_gang_has_them_when_enough_have_ended_at_the_latest(self):
        small = waiting("small", longest=timedelta(minutes=30))
        assert self.started_beside_the_gang(busy(10, 30, 60, nodes=4), small, nodes=3) == ["small"]
        assert self.started_beside_the_gang(busy(10, 20, 60, nodes=4), small, nodes=3) == []

    def test_what_has_no_limit_is_not_waited_for_where_others_are_enough(self):
        small = waiting("small", longest=timedelta(minutes=30))
        assert self.started_beside_the_gang(busy(None, 30, nodes=3), small) == ["small"]

    @pytest.mark.parametrize(
        ("waited", "longest", "is_started"),
        [
            (60, 60, True),
            (60, 61, False),
            (180, None, True),
            (181, None, False),
            (240, 20, True),
            (240, 21, False),
        ],
    )
    def test_where_it_is_not_stated_when_the_gang_has_its_nodes_it_is_estimated(
        self, waited, longest, is_started
    ):
        """By what has run for an hour: as long again, or a third of the gang's wait where that is more."""
        gang = waiting("gang", tenant="first", nodes=2, minutes=waited)
        small = waiting("small", longest=None if longest is None else timedelta(minutes=longest))
        ledger = a_ledger(busy(None, nodes=2))
        assert started([gang, small], ledger) == ([("small", SPOT)] if is_started else [])

    def test_a_node_that_the_gang_will_not_need_goes_to_whoever_is_next_for_as_long_as_it_takes(self):
        pool = busy(30, 30, nodes=4)
        others = [waiting(f"small-{number}", minutes=9 - number) for number in range(3)]
        assert self.started_beside_the_gang(pool, *others, nodes=3) == ["small-0"]

    def test_those_who_pass_the_gang_go_in_their_order(self):
        others = [
            waiting("long", minutes=9),
            waiting("second", minutes=5, longest=timedelta(minutes=5)),
            waiting("first", minutes=6, longest=timedelta(minutes=5)),
        ]
        assert self.started_beside_the_gang(busy(30, 30, nodes=4), *others, nodes=4) == ["first", "second"]

    def test_what_should_have_ended_may_end_at_any_moment(self):
        small = waiting("small", longest=timedelta(seconds=1))
        assert self.started_beside_the_gang(busy(-5, nodes=2), small) == []


class TestDeviceLimit:
    def limited(self, *pools, limit, **held):
        return replace(a_ledger(*pools, **held), device_limits={"acme": limit})

    @pytest.mark.parametrize(("limit", "names"), [(0, []), (1, []), (2, ["job-0"]), (4, ["job-0", "job-1"])])
    def test_a_tenant_gets_no_more_devices_than_it_may_have(self, limit, names):
        candidates = [waiting(f"job-{n}", devices_per_node=2, minutes=9 - n) for n in range(3)]
        ledger = self.limited(a_pool(nodes=4, devices_per_node=2), limit=limit)
        assert [job_id for job_id, _ in started(candidates, ledger)] == names

    def test_what_it_has_counts_and_others_pass_it(self):
        ledger = self.limited(a_pool(nodes=4, booked=2), limit=2, acme=2)
        assert started([waiting(minutes=60), waiting("job-2", tenant="other")], ledger) == [("job-2", SPOT)]

    @pytest.mark.parametrize(("nodes", "pool"), [(1, SPOT), (2, ON_DEMAND)])
    def test_a_gang_counts_with_all_devices_of_its_machines(self, nodes, pool):
        pools = (a_pool(SPOT, devices_per_node=8), a_pool(ON_DEMAND, devices_per_node=1))
        assert started([waiting(nodes=nodes)], self.limited(*pools, limit=4)) == [("job-1", pool)]

    def test_a_job_that_it_keeps_waiting_reserves_nothing(self):
        gang = waiting("gang", nodes=2, minutes=60)
        ledger = self.limited(a_pool(nodes=2, booked=1), limit=1)
        assert started([gang, waiting("small", tenant="other")], ledger) == [("small", SPOT)]

    def test_the_reason_names_the_limit(self):
        ledger = self.limited(a_pool(), limit=2, acme=2)
        assert why_waiting(waiting(), ledger, now=NOON).endswith(
            ": its tenant has 2 devices of 2 that it may have at once"
        )

    def test_the_reason_of_a_tenant_that_may_have_none_names_its_budget(self):
        ledger = self.limited(a_pool(), limit=0)
        assert "the budget of its month is used up" in why_waiting(waiting(), ledger, now=NOON)


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
        candidate = waiting(no_capacity_at={SPOT: NOON - timedelta(seconds=seconds_ago)})
        assert bool(started([candidate], a_ledger(pool))) is is_asked

    def test_meanwhile_it_falls_back_and_others_may_ask(self):
        candidates = [waiting("job-1", no_capacity_at={SPOT: NOON}), waiting("job-2")]
        ledger = a_ledger(a_pool(SPOT), a_pool(ON_DEMAND))
        assert started(candidates, ledger) == [("job-1", ON_DEMAND), ("job-2", SPOT)]


class TestWhyWaiting:
    @pytest.mark.parametrize(
        ("candidate", "pool", "reason"),
        [
            (
                waiting(nodes=3),
                a_pool(nodes=2),
                "no pool can hold 3 whole nodes with 1 device each (spot-first); known: cpu-spot",
            ),
            (
                waiting(nodes=2),
                a_pool(booked=1),
                "waits for 2 whole nodes with 1 device each (spot-first): cpu-spot has 1 of 2 nodes wholly free",
            ),
            (waiting(), a_pool(), "its turn for 1 device of one node (spot-first)"),
            (
                waiting(),
                a_pool(tenants=("acme",), device=DeviceKind.CUDA),
                "its turn for 1 device of one node (spot-first, cuda)",
            ),
            (waiting(not_before=NOON), a_pool(), "its turn for 1 device of one node (spot-first)"),
            (
                waiting(not_before=NOON + timedelta(seconds=61)),
                a_pool(),
                "backs off until 12:01:01 UTC",
            ),
            (
                waiting(no_capacity_at={SPOT: NOON}),
                a_pool(),
                "1 device of one node (spot-first): the engine had no capacity in cpu-spot, asked again soon",
            ),
        ],
    )
    def test_it_names_what_is_missing(self, candidate, pool, reason):
        assert why_waiting(candidate, a_ledger(pool), now=NOON) == reason


def test_a_candidate_is_what_the_queue_must_know_of_a_job():
    resources = Resources(
        nodes=2,
        devices_per_node=4,
        capacity_type=CapacityType.SPOT,
        pool="h100",
        max_run_seconds=600,
        grace_seconds=30,
    )
    job = a_job(
        JobState.QUEUED,
        spec=a_job_spec(resources=resources, tier=Tier.PREMIUM),
        not_before=NOON,
        no_capacity_at={"h100": NOON},
    )
    expected = Candidate(
        "ftjob-1", "acme", Tier.PREMIUM, NOON, resources, NOON, {"h100": NOON}, timedelta(seconds=630)
    )
    assert Candidate.of(job, queued_at=NOON) == expected


def test_of_a_thousand_waiting_jobs_as_many_start_as_there_are_nodes():
    candidates = [waiting(f"job-{n:04}", tenant=f"tenant-{n % 50}", minutes=n / 60) for n in range(1000)]
    granted = grants(candidates, a_ledger(a_pool(nodes=20)), now=NOON)
    assert len(granted) == 20


class TestRound:
    @pytest.mark.parametrize("seed", range(200))
    def test_decides_like_one_who_looks_at_the_whole_queue_for_each_grant(self, seed):
        draw = random.Random(seed)
        candidates, ledger = a_queue(draw), a_random_ledger(draw)
        assert grants(candidates, ledger, now=NOON) == grants_one_by_one(candidates, ledger, now=NOON)

    @pytest.mark.parametrize("seed", range(200))
    def test_needs_those_behind_the_oldest_of_a_kind_only_where_it_has_use_for_them(self, seed):
        draw = random.Random(seed)
        kinds_asked, ledger = a_queue(draw)[:6], a_random_ledger(draw)
        candidates = [
            replace(
                draw.choice(kinds_asked),
                job_id=f"job-{number}",
                queued_at=NOON - timedelta(minutes=draw.randrange(60)),
            )
            for number in range(40)
        ]
        kinds = defaultdict[str, list[Candidate]](list)
        for candidate in sorted(candidates, key=lambda each: (each.queued_at, each.job_id)):
            kinds[kind_of(candidate)].append(candidate)
        queue_round = Round([behind.pop(0) for behind in kinds.values()], ledger, now=NOON)
        granted = []
        while (grant := queue_round.next()) is not None:
            granted.append(grant)
            behind = kinds[kind_of(grant.candidate)]
            if behind and queue_round.has_use_for_one_like(grant.candidate):
                queue_round.add(behind.pop(0))
        assert granted == grants(candidates, ledger, now=NOON)

    def test_has_use_for_one_that_reserves_devices_though_none_are_left_for_it(self):
        first, second = (waiting(f"gang-{n}", nodes=2, minutes=60 - n) for n in range(2))
        small = waiting("small", longest=timedelta(minutes=40))
        pool = a_pool(SPOT, nodes=4, bookings=[a_booking(0, ends_by=NOON + timedelta(minutes=5))])
        queue_round = Round([first, small], a_ledger(pool), now=NOON)
        assert queue_round.next().candidate == first
        assert queue_round.has_use_for_one_like(first)
        assert not queue_round.has_use_for_one_like(replace(first, queued_at=NOON))
        queue_round.add(second)
        assert queue_round.next() is None

    def test_a_tenant_that_got_a_node_stands_behind_others_for_the_next(self):
        candidates = [waiting(f"a-{n}", minutes=1) for n in range(3)] + [waiting("b-1", tenant="other")]
        assert [job_id for job_id, _ in started(candidates, a_ledger(a_pool(nodes=4)))] == [
            "a-0",
            "b-1",
            "a-1",
            "a-2",
        ]

    def test_what_is_added_between_two_grants_takes_its_turn(self):
        queue_round = Round([waiting("a-1", minutes=3), waiting("a-3")], a_ledger(a_pool(nodes=9)), now=NOON)
        assert queue_round.next().candidate.job_id == "a-1"
        queue_round.add(waiting("a-2", minutes=1))
        assert [queue_round.next().candidate.job_id for _ in range(2)] == ["a-2", "a-3"]
        assert queue_round.next() is None


NODES = (
    *({"nodes": nodes} for nodes in (1, 1, 1, 2, 4)),
    {"min_nodes": 1, "nodes": 3},
    {"min_nodes": 2, "nodes": 4},
)


def kind_of(candidate):
    """The candidate but for its age, as text: those of a kind give equal ones."""
    return repr(replace(candidate, job_id="", queued_at=NOON))


def a_queue(draw):
    return [
        waiting(
            f"job-{number}",
            tenant=draw.choice("abcd"),
            tier=draw.choice(tuple(Tier)),
            minutes=draw.randrange(30),
            **draw.choice(NODES),
            devices_per_node=draw.choice((1, 1, 2, 4)),
            capacity_type=draw.choice(("spot", "spot-first", "on-demand")),
            pool=draw.choice((None, None, SPOT)),
            accelerators=draw.choice(((), (), ("h100",))),
            no_capacity_at=draw.choice(({}, {}, {SPOT: NOON - timedelta(seconds=5)})),
            not_before=draw.choice((None, None, NOON + timedelta(seconds=5))),
            longest=draw.choice((None, timedelta(minutes=5), timedelta(minutes=40))),
        )
        for number in range(40)
    ]


def a_random_pool(draw, name):
    ends = (None, NOON + timedelta(minutes=10), NOON + timedelta(minutes=30))
    devices = draw.choice((1, 1, 4))
    bookings = [
        a_booking(draw.randrange(6), devices=draw.randint(1, devices), ends_by=draw.choice(ends))
        for _ in range(draw.randrange(6))
    ]
    return a_pool(
        name,
        nodes=draw.randrange(1, 9),
        devices_per_node=devices,
        device_memory_bytes=draw.choice((None, 24 * 2**30, 80 * 2**30)),
        accelerator=draw.choice((None, "h100")),
        tenants=draw.choice(((), (), ("a", "b"))),
        bookings=bookings,
    )


def a_random_ledger(draw):
    names = (SPOT, ON_DEMAND, "other-spot")
    pools = [a_random_pool(draw, name) for name in names]
    ledger = a_ledger(*pools, **{tenant: {name: draw.randrange(6) for name in names} for tenant in "abc"})
    return replace(
        ledger, device_limits={tenant: draw.randrange(30) for tenant in draw.choice(("", "a", "bc"))}
    )
