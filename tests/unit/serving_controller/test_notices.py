"""Replicas whose nodes go away: another one first, then the replica leaves, and in time in any case."""

from dataclasses import replace
from datetime import timedelta

import pytest

from schemas.node import LeasedNode
from services.serving_controller.decide import pools
from services.serving_controller.decide.notices import END_BEFORE, LEAVE_BEFORE
from services.serving_controller.decide.pools import AskDevices, Drain, End, Forget, GiveBackDevices, Policy
from services.serving_controller.model import Phase, Replica, ReplicaSet
from shared.device_leases.lease import HeldLease, LeaseState
from tests.unit.serving_controller.builders import BASE_SHA, NOON, POOL, an_address

POLICY = Policy()
SOON = NOON + timedelta(minutes=2)


def a_replica(index: int = 0, phase: Phase = Phase.READY, **changes: object) -> Replica:
    replica = Replica(
        f"{POOL}-{index}",
        POOL,
        BASE_SHA,
        phase,
        an_address(index),
        started_at=NOON - timedelta(hours=1),
        max_rank=32,
        served_base="tiny",
        announced=frozenset({"tiny"}),
    )
    return replace(replica, **changes)


def a_lease(index: int = 0, *, notice=None, state=LeaseState.HELD, reason="") -> HeldLease:
    node = LeasedNode(node_id=f"r-{index}-n0", notice_deadline=notice, notice_source="drain")
    return HeldLease(
        f"{POOL}-{index}", f"lease-{index}", state, until=NOON + timedelta(hours=1), node=node, reason=reason
    )


def planned(*replicas: Replica, leases: tuple[HeldLease, ...], num_replicas: int = 1, now=NOON):
    replica_set = ReplicaSet(
        POOL,
        BASE_SHA,
        base_names=("tiny",),
        num_replicas=num_replicas,
        leases={lease.subject: lease for lease in leases},
    )
    return pools.plan(replica_set, replicas, now=now, policy=POLICY)


def test_without_a_notice_nothing_is_done():
    assert planned(a_replica(), leases=(a_lease(),)) == ()


def test_another_one_gets_a_node_while_the_first_serves_on():
    assert planned(a_replica(), leases=(a_lease(notice=SOON),)) == (AskDevices(f"{POOL}-1"),)


def test_the_first_leaves_once_another_one_is_ready():
    replicas = (a_replica(0), a_replica(1))
    [drain] = planned(*replicas, leases=(a_lease(notice=SOON), a_lease(1)))
    assert isinstance(drain, Drain)
    assert (drain.replica.replica_id, drain.replica.reason) == (f"{POOL}-0", "its node goes away: drain")
    starting = (a_replica(0), a_replica(1, Phase.STARTING, answers=False, started_at=NOON))
    assert planned(*starting, leases=(a_lease(notice=SOON), a_lease(1))) == ()


def test_it_leaves_in_time_whether_or_not_another_one_is_ready():
    near = NOON + LEAVE_BEFORE
    ask, drain = planned(a_replica(), leases=(a_lease(notice=near),))
    assert (type(ask), type(drain)) == (AskDevices, Drain)


def test_who_leaves_is_known_to_before_it_ends_and_ends_before_its_node():
    replicas, leases = (a_replica(0), a_replica(1)), (a_lease(notice=SOON), a_lease(1))
    [drain] = planned(*replicas, leases=leases)

    def ends(seconds: float, *, is_busy: bool) -> bool:
        leaving = replace(drain.replica, is_busy=is_busy)
        now = NOON + timedelta(seconds=seconds)
        return bool(planned(leaving, replicas[1], leases=leases, now=now))

    assert [ends(seconds, is_busy=False) for seconds in (4, 6)] == [False, True]
    last = (SOON - END_BEFORE - NOON).total_seconds()
    assert [ends(seconds, is_busy=True) for seconds in (last - 1, last)] == [False, True]


def test_the_other_one_stays_in_its_place_when_it_is_gone():
    lost = a_replica(0, Phase.LOST, is_alive=False)
    assert planned(lost, a_replica(1), leases=(a_lease(1),)) == (Forget(lost),)
    assert planned(a_replica(1), leases=(a_lease(1),)) == ()


def test_one_of_several_is_replaced_and_the_others_stay():
    replicas = (a_replica(0), a_replica(1))
    leases = (a_lease(0), a_lease(1, notice=SOON))
    assert planned(*replicas, leases=leases, num_replicas=2) == (AskDevices(f"{POOL}-2"),)
    [drain] = planned(*replicas, a_replica(2), leases=(*leases, a_lease(2)), num_replicas=2)
    assert drain.replica.replica_id == f"{POOL}-1"


@pytest.mark.parametrize(
    ("replica", "lease", "reason"),
    [
        (a_replica(phase=Phase.STARTING, started_at=NOON), a_lease(notice=SOON), "its node goes away: drain"),
        (a_replica(is_alive=False, reason="died"), a_lease(notice=SOON), "died"),
        (
            a_replica(),
            a_lease(notice=SOON, state=LeaseState.REFUSED, reason="node r-0-n0 was lost"),
            "node r-0-n0 was lost",
        ),
    ],
    ids=["starting", "dead", "without its node"],
)
def test_what_serves_nobody_ends_at_once(replica, lease, reason):
    ends = [each for each in planned(replica, leases=(lease,)) if isinstance(each, End)]
    assert [each.reason for each in ends] == [reason]


def test_a_lease_of_a_place_that_is_not_needed_any_more_is_given_back():
    spare = replace(a_lease(1), node=None, state=LeaseState.QUEUED)
    assert planned(a_replica(), leases=(a_lease(), spare)) == (GiveBackDevices(f"{POOL}-1"),)
