"""Where queued jobs stand, and what of it is told."""

import random
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from unittest.mock import AsyncMock

import pytest

from schemas.base import DeviceKind
from schemas.job import QueuePositionChanged, WaitReason, waits_unreported
from schemas.specification import Tier
from services.scheduler import queue_store
from services.scheduler.decide import positions
from services.scheduler.decide.candidate import Candidate
from services.scheduler.decide.decision import Policy
from services.scheduler.decide.ledger import Ledger
from services.scheduler.decide.positions import FAR_BEHIND, MAX_CHANGES, QueueEntry, changes, rounded
from services.scheduler.handlers import Handlers
from tests.builders import NOON, a_booking, a_ledger, a_pool
from tests.unit.scheduler.grants import grants
from tests.unit.scheduler.test_queue import ON_DEMAND, SPOT, a_queue, waiting

HOUR = timedelta(hours=1)


def standing(
    candidates: Sequence[Candidate], ledger: Ledger, *, run_time: timedelta | None = HOUR
) -> list[QueueEntry]:
    return list(positions.queue_entries(candidates, ledger, now=NOON, run_time=run_time))


def full(nodes: int = 1, *, minutes: int = 0, **held: int) -> Ledger:
    """Each node since so many minutes."""
    since = NOON - timedelta(minutes=minutes)
    return a_ledger(a_pool(nodes=nodes, bookings=[a_booking(*range(nodes), since=since)]), **held)


class TestPosition:
    @pytest.mark.parametrize("seed", range(100))
    def test_the_order_is_that_of_the_grants_if_there_were_nodes_for_all(self, seed):
        draw = random.Random(seed)
        candidates = [
            waiting(
                f"job-{number}",
                tenant=draw.choice("abcd"),
                tier=draw.choice(tuple(Tier)),
                minutes=draw.randrange(19),
                nodes=draw.choice((1, 1, 2, 4)),
                devices_per_node=draw.choice((1, 1, 2)),
                pool=draw.choice((None, SPOT, "small-spot")),
            )
            for number in range(40)
        ]
        types = [draw.choice((None, DeviceKind.CPU, DeviceKind.CUDA)) for _ in range(2)]
        large = a_pool(nodes=1_000, devices_per_node=2, device=types[0])
        small = a_pool("small-spot", nodes=200, devices_per_node=draw.choice((2, 8)), device=types[1])
        held = {tenant: {pool.name: draw.randrange(60) for pool in (large, small)} for tenant in "abc"}
        enough = a_ledger(large, small, **held)
        started = [grant.candidate.job_id for grant in grants(candidates, enough, now=NOON)]
        shown = [entry.candidate.job_id for entry in standing(candidates, enough)]
        assert shown == started

    def test_who_backs_off_or_suits_no_pool_has_none_and_holds_up_nobody(self):
        later = waiting("later", minutes=9, not_before=NOON + timedelta(minutes=1))
        huge = waiting("huge", minutes=9, nodes=9)
        first, *rest = standing([later, huge, waiting("job-1")], full())
        assert (first.candidate.job_id, first.position) == ("job-1", 1)
        assert {(entry.candidate.job_id, entry.position, entry.reason) for entry in rest} == {
            ("later", None, WaitReason.NOT_BEFORE),
            ("huge", None, WaitReason.NO_POOL),
        }

    def test_who_wants_the_same_may_not_have_the_same_pools(self):
        pool = a_pool(tenants=("acme",))
        mine, others = standing([waiting("mine"), waiting("other", tenant="other")], a_ledger(pool))
        assert (mine.position, mine.reason) == (1, WaitReason.ITS_TURN)
        assert (others.candidate.job_id, others.position, others.reason) == (
            "other",
            None,
            WaitReason.NO_POOL,
        )

    def test_who_wants_the_same_may_not_have_as_much(self):
        ledger = replace(a_ledger(a_pool()), device_limits={"none": 0, "some": 5})
        candidates = [waiting("a", tenant="none", minutes=1), waiting("b", tenant="some")]
        some, none = standing(candidates, ledger)
        assert (some.candidate.job_id, some.position) == ("b", 1)
        assert (none.candidate.job_id, none.position, none.reason) == ("a", None, WaitReason.QUOTA)

    @pytest.mark.parametrize(
        ("position", "shown"), [(1, 1), (10, 10), (11, 20), (20, 20), (99, 100), (101, 200), (24_001, 30_000)]
    )
    def test_it_is_exact_in_front_and_coarse_behind(self, position, shown):
        assert rounded(position) == shown


class TestReason:
    @pytest.mark.parametrize("seed", range(50))
    def test_everyone_has_one_sentence(self, seed):
        draw = random.Random(seed)
        for entry in standing(a_queue(draw), a_ledger(a_pool(nodes=4, booked=draw.randrange(5)))):
            assert entry.waiting_for

    def test_all_nodes_are_taken(self):
        [entry] = standing([waiting()], full())
        assert entry.reason is WaitReason.NO_NODES
        assert "cpu-spot has 0 of 1 device free" in entry.waiting_for

    def test_younger_jobs_of_tenants_with_less_go_first(self):
        candidates = [waiting("old", minutes=30), waiting("young", tenant="other")]
        first, second = standing(candidates, full(3, acme=3))
        assert [first.candidate.job_id, second.candidate.job_id] == ["young", "old"]
        assert (first.reason, second.reason) == (WaitReason.NO_NODES, WaitReason.SHARE)
        assert second.waiting_for.endswith("its tenant has 3 of 3 devices, those that have less go first")

    def test_who_goes_first_for_its_tier_goes_for_no_share(self):
        premium = waiting("premium", tenant="other", tier=Tier.PREMIUM, minutes=5)
        first, second = standing([premium, waiting("old", minutes=10)], full())
        assert [first.candidate.job_id, second.candidate.job_id] == ["premium", "old"]
        assert second.reason is WaitReason.NO_NODES

    def test_a_premium_job_is_behind_for_its_share_where_it_waits_longer_with_its_ten_minutes(self):
        premium = waiting("premium", tier=Tier.PREMIUM, minutes=5)
        first, second = standing([premium, waiting("young", tenant="other", minutes=1)], full(3, acme=3))
        assert [first.candidate.job_id, second.candidate.job_id] == ["young", "premium"]
        assert second.reason is WaitReason.SHARE

    def test_its_share_is_of_the_type_of_which_it_has_the_greatest_part(self):
        large = a_pool(nodes=3, bookings=[a_booking(0, 1, 2)])
        small = a_pool("small-spot", nodes=2, bookings=[a_booking(0, 1)], device=DeviceKind.CUDA)
        candidates = [waiting("old", minutes=30, pool=SPOT), waiting("young", tenant="other", pool=SPOT)]
        held = {"acme": {SPOT: 1, "small-spot": 2}, "other": {SPOT: 2}}
        first, second = standing(candidates, a_ledger(large, small, **held))
        assert [first.candidate.job_id, second.candidate.job_id] == ["young", "old"]
        assert second.reason is WaitReason.SHARE
        assert second.waiting_for.endswith(
            "its tenant has 2 of 2 devices in small-spot, those that have less go first"
        )

    def test_the_free_nodes_are_kept_for_a_gang_in_front(self):
        gang = waiting("gang", tenant="other", nodes=2, minutes=30)
        first, second = standing([gang, waiting("small")], a_ledger(a_pool(nodes=2, booked=1)))
        assert (first.reason, second.reason) == (WaitReason.NO_NODES, WaitReason.KEPT_NODES)
        assert (
            second.waiting_for
            == f"{SPOT} keeps its free devices for a job of 2 whole nodes with 1 device each in front"
        )

    def test_of_several_pools_that_suit_a_gang_the_one_that_it_prefers_is_kept(self):
        pools = (a_pool(ON_DEMAND, nodes=2, booked=1), a_pool(SPOT, nodes=2, booked=1))
        gang = waiting("gang", tenant="other", nodes=2, minutes=30)
        _, second, third = standing([gang, waiting("a", minutes=1), waiting("b")], a_ledger(*pools))
        assert (second.reason, third.reason) == (WaitReason.ITS_TURN, WaitReason.KEPT_NODES)
        assert (
            third.waiting_for
            == f"{SPOT} keeps its free devices for a job of 2 whole nodes with 1 device each in front"
        )

    def test_when_a_gang_behind_a_job_that_states_nothing_has_them_is_an_estimate(self):
        gang = waiting("gang", tenant="other", nodes=2, minutes=60)
        booking = a_booking(0, since=NOON - timedelta(minutes=5))
        pool = a_pool(nodes=2, bookings=[booking])
        _, small = standing([gang, waiting("small")], a_ledger(pool))
        assert small.reason is WaitReason.KEPT_NODES
        assert small.waiting_for.endswith("in front, which is expected to have them by 12:15 UTC")

    def test_a_job_that_could_pass_the_gang_with_a_stated_run_time_is_shown_so(self):
        gang = waiting("gang", tenant="other", nodes=2, minutes=30)
        booking = a_booking(0, ends_by=NOON + timedelta(minutes=10))
        _, small = standing([gang, waiting("small")], a_ledger(a_pool(nodes=2, bookings=[booking])))
        assert small.waiting_for == (
            f"{SPOT} keeps its free devices for a job of 2 whole nodes with 1 device each in front, which has them by "
            "12:10 UTC, and this one states no resources.max_run_seconds"
        )
        long = waiting("long", longest=timedelta(minutes=11))
        _, entry = standing([gang, long], a_ledger(a_pool(nodes=2, bookings=[booking])))
        assert entry.waiting_for.endswith("in front, which has them by 12:10 UTC")

    def test_its_tenant_has_all_devices_that_it_may(self):
        ledger = replace(a_ledger(a_pool(nodes=3, booked=1), acme=1), device_limits={"acme": 2})
        first, second = standing([waiting("a", minutes=1), waiting("b")], ledger)
        assert (first.reason, second.reason) == (WaitReason.ITS_TURN, WaitReason.QUOTA)
        assert (second.candidate.job_id, second.position) == ("b", 2)
        assert second.waiting_for.endswith("its tenant has 2 devices of 2 that it may have at once")
        assert second.starts_at is None
        [full] = standing([waiting()], replace(ledger, device_limits={"acme": 1}))
        assert (full.position, full.reason) == (None, WaitReason.QUOTA)
        assert full.waiting_for.endswith("its tenant has 1 device of 1 that it may have at once")

    def test_a_free_node_is_the_firsts_turn_alone(self):
        first, second = standing([waiting("a", minutes=1), waiting("b")], a_ledger(a_pool(nodes=1)))
        assert (first.reason, second.reason) == (WaitReason.ITS_TURN, WaitReason.NO_NODES)

    def test_the_cluster_refused_it(self):
        [entry] = standing([waiting(no_capacity_at={SPOT: NOON})], a_ledger(a_pool()))
        assert entry.reason is WaitReason.NO_CAPACITY


class TestEstimate:
    def test_nodes_are_free_when_those_who_have_them_have_run_for_as_long_as_is_usual(self):
        first, second = standing([waiting("a", minutes=1), waiting("b")], full(minutes=20))
        assert first.starts_at == NOON + timedelta(minutes=40)
        assert second.starts_at == NOON + timedelta(minutes=100)

    def test_a_gang_waits_for_the_last_of_its_nodes(self):
        bookings = [
            a_booking(number, since=NOON - timedelta(minutes=minutes))
            for number, minutes in enumerate((10, 30, 50))
        ]
        ledger = a_ledger(a_pool(nodes=3, bookings=bookings))
        [gang] = standing([waiting(nodes=2)], ledger)
        assert gang.starts_at == NOON + timedelta(minutes=30)

    def test_jobs_share_a_machine_and_one_that_wants_it_whole_waits_for_the_last(self):
        bookings = [a_booking(0, since=NOON - timedelta(minutes=20))]
        pool = a_pool(nodes=1, devices_per_node=2, bookings=bookings)
        small, large, later = standing(
            [waiting("a", minutes=2), waiting("b", minutes=1, devices_per_node=2), waiting("c")],
            a_ledger(pool),
        )
        assert (small.reason, small.starts_at) == (WaitReason.ITS_TURN, NOON)
        assert (large.reason, large.starts_at) == (WaitReason.NO_NODES, NOON + HOUR)
        assert later.starts_at == NOON + 2 * HOUR

    def test_a_small_job_is_taken_to_start_beside_others_so_that_a_whole_machine_is_left(self):
        pool = a_pool(nodes=2, devices_per_node=2, bookings=[a_booking(1)])
        line = [waiting("a", minutes=2), waiting("b", minutes=1, devices_per_node=2)]
        assert [entry.starts_at for entry in standing(line, a_ledger(pool))] == [NOON, NOON]

    def test_what_runs_for_longer_than_usual_may_end_at_any_moment(self):
        [entry] = standing([waiting()], full(minutes=500))
        assert entry.starts_at == NOON

    def test_who_states_less_than_is_usual_ends_sooner(self):
        booking = a_booking(0, ends_by=NOON + timedelta(minutes=10))
        candidates = [waiting("a", minutes=1, longest=timedelta(minutes=5)), waiting("b")]
        first, second = standing(candidates, a_ledger(a_pool(nodes=1, bookings=[booking])))
        assert first.starts_at == NOON + timedelta(minutes=10)
        assert second.starts_at == NOON + timedelta(minutes=15)

    def test_where_nothing_has_ended_nothing_is_estimated(self):
        [entry] = standing([waiting()], full(), run_time=None)
        assert entry.starts_at is None

    def test_a_pool_that_shrank_under_its_attempts_is_waited_for(self):
        ledger = a_ledger(a_pool(nodes=1, bookings=[a_booking(0, 1)]))
        [entry] = standing([waiting()], ledger)
        assert entry.starts_at == NOON + HOUR

    def test_behind_a_thousand_the_queue_continues_at_their_pace(self):
        candidates = [waiting(f"job-{number:04}", minutes=5_000 - number) for number in range(2_000)]
        *_, last = standing(candidates, full())
        assert (last.position, last.reason) == (2_000, WaitReason.FAR_BEHIND)
        assert last.starts_at == NOON + 2_000 * HOUR
        assert (last.candidate, last.waiting_for) == (candidates[-1], FAR_BEHIND)
        *_, last = standing(candidates, full(), run_time=None)
        assert (last.position, last.starts_at) == (2_000, None)


async def test_a_long_queue_is_ordered_beside_the_loop_that_handles_messages(monkeypatch):
    threads = []

    def ordered(*_, **__):
        threads.append(threading.get_ident())
        return iter(())

    monkeypatch.setattr(positions, "queue_entries", ordered)
    answers = {
        "is_anyone_queued": True,
        "everyone_queued": [],
        "get_ledger": a_ledger(),
        "typical_run_time": None,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(queue_store, name, AsyncMock(return_value=answer))
    await Handlers(Policy()).announce_positions(AsyncMock(now=NOON), {})
    assert threads
    assert threading.get_ident() not in threads


class TestChanges:
    def facts(self, candidates: Sequence[Candidate], ledger: Ledger) -> dict[str, QueuePositionChanged]:
        return {entry.candidate.job_id: entry.fact() for entry in standing(candidates, ledger)}

    def changed(
        self, candidates: Sequence[Candidate], ledger: Ledger, announced: dict[str, QueuePositionChanged]
    ) -> list[str]:
        return [fact.job_id for fact in changes(standing(candidates, ledger), announced, now=NOON)]

    def test_what_was_announced_is_not_announced_again(self):
        candidates = [waiting("a", minutes=1), waiting("b")]
        assert self.changed(candidates, full(), {}) == ["a", "b"]
        assert self.changed(candidates, full(), self.facts(candidates, full())) == []

    def test_a_job_that_moves_forward_in_front_is_announced(self):
        candidates = [waiting("a", minutes=1), waiting("b")]
        assert self.changed(candidates[1:], full(), self.facts(candidates, full())) == ["b"]

    def test_far_behind_one_step_forward_is_announced_to_those_who_pass_a_round_number(self):
        candidates = [waiting(f"job-{number:04}", minutes=500 - number / 4) for number in range(1_000)]
        announced = self.facts(candidates, full(1_000))
        moved = self.changed(candidates[1:], full(1_000), announced)
        assert moved == [
            *(f"job-{number:04}" for number in range(1, 11)),
            *(f"job-{number:04}" for number in (*range(20, 101, 10), *range(200, 1_000, 100))),
        ]

    @pytest.mark.parametrize(
        ("reported", "newest", "is_announced"),
        [
            (40, 40, False), (40, 27, False), (40, 26, True), (20, 40, False), (20, 41, True),
            (1, 0, False), (1, 2, False), (1, 3, True),
        ],
    )  # fmt: skip
    def test_an_estimate_is_announced_again_once_it_is_off_by_half(self, reported, newest, is_announced):
        """Of the minutes that are left, and by more than one."""
        announced = self.facts([waiting()], full(minutes=60 - reported))
        later = full(minutes=60 - newest)
        assert bool(self.changed([waiting()], later, announced)) is is_announced
        least, most = waits_unreported(timedelta(minutes=reported))
        assert (least <= timedelta(minutes=newest) <= most) is not is_announced

    def test_an_estimate_is_announced_where_there_was_none_and_none_is_not_announced_again(self):
        [before] = standing([waiting()], full(), run_time=None)
        announced = {"job-1": before.fact()}
        assert changes([before], announced, now=NOON) == []
        [now_known] = standing([waiting()], full())
        assert changes([now_known], announced, now=NOON) == [now_known.fact()]
        assert changes([before], {"job-1": now_known.fact()}, now=NOON) == [before.fact()]

    def test_of_a_long_queue_the_front_is_announced_first(self):
        candidates = [waiting(f"job-{number:04}", minutes=500 - number / 4) for number in range(1_000)]
        assert self.changed(candidates, full(), {}) == [each.job_id for each in candidates[:MAX_CHANGES]]
