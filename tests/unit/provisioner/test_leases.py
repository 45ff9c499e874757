"""Leases of services: which devices each gets, who waits, and that no device has two holders."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.node import (
    DeviceLeaseEnded,
    DevicesLeased,
    LeasedDevices,
    LeaseDevices,
    LeaseEnd,
    ProvisioningFailed,
)
from services.provisioner import decide, leases, pools
from services.provisioner.model import Lease, LeaseState, Pool
from shared.errors import Refused
from tests.unit.provisioner.attempts import NOON, SECOND, a_pool, a_schedule, types

UNTIL = NOON + timedelta(minutes=5)


def asked(
    lease_id="lease-1", *, devices=1, pool="spot", until=UNTIL, purpose="scoring", has_node=False
) -> LeaseDevices:
    return LeaseDevices(
        lease_id=lease_id,
        holder="evaluator",
        purpose=purpose,
        pool=pool,
        has_node=has_node,
        devices=devices,
        until=until,
    )


def waiting(name: str = "lease-1", devices: int = 1, **changes: object) -> Lease:
    return replace(
        Lease(name, "evaluator", "scoring", "spot", devices, asked_at=NOON, until=UNTIL), **changes
    )


def held(name: str, machine: int, *devices: int, **changes: object) -> Lease:
    lease = replace(waiting(name, len(devices)), state=LeaseState.HELD, machine=machine, devices=devices)
    return replace(lease, **changes)


def a_full_pool(*queued: Lease, **changes: object) -> Pool:
    return a_pool(nodes=2, held=2, leases=queued, **changes)


def devices_of(served: leases.Served) -> dict[str, tuple[int, ...]]:
    return {lease.lease_id: lease.devices for lease in served.changed}


class TestServing:
    @pytest.mark.parametrize(
        ("pool", "devices", "expected"),
        [
            (a_pool(), 1, (0, (0,))),
            (a_pool(), 2, (0, (0, 1))),
            (a_pool(leased={2: frozenset({4})}), 1, (2, (5,))),
            (a_pool(leased={0: frozenset({0})}), 2, (1, (2, 3))),
            (a_pool(drained=(0,)), 1, (1, (2,))),
            (a_pool(cordoned=("0",)), 1, (1, (2,))),
        ],
        ids=["lowest", "whole", "beside others", "with room", "not drained", "not cordoned"],
    )
    def test_is_on_the_machine_that_leaves_others_whole(self, pool, devices, expected):
        served = leases.serve(replace(pool, leases=(waiting(devices=devices),)))
        [lease] = served.changed
        assert (lease.machine, lease.devices) == expected
        [fact] = served.events
        assert fact == DevicesLeased(
            lease_id="lease-1", holder="evaluator", purpose="scoring", pool="spot", machine=expected[0],
            devices=expected[1], until=UNTIL,
        )  # fmt: skip

    def test_gives_nothing_that_is_not_there(self):
        served = leases.serve(a_full_pool(waiting()))
        assert (served.changed, served.events) == ((), ())

    def test_is_in_the_order_of_the_questions(self):
        pool = a_pool(nodes=1, leased={0: frozenset({0})}, leases=(waiting("first"), waiting("second")))
        assert devices_of(leases.serve(pool)) == {"first": (1,)}

    def test_of_a_small_lease_leaves_what_a_larger_one_in_front_waits_for(self):
        part = {0: frozenset({0}), 1: frozenset({2, 3})}
        queued = (waiting("large", 2), waiting("small", 1))
        assert devices_of(leases.serve(a_pool(nodes=2, leased=part, leases=queued))) == {}
        halves = {0: frozenset({0}), 1: frozenset({2})}
        assert devices_of(leases.serve(a_pool(nodes=2, leased=halves, leases=queued))) == {"small": (3,)}

    def test_ends_all_leases_of_a_removed_pool(self):
        pool = a_pool(nodes=0, is_removed=True, leases=(held("a", 0, 0), waiting("b")))
        served = leases.serve(pool)
        assert [(lease.state, lease.devices) for lease in served.changed] == [(LeaseState.ENDED, ())] * 2
        assert [fact.reason for fact in served.events] == [LeaseEnd.POOL_REMOVED] * 2
        assert served.pool.capacity.leases == ()


class TestAsking:
    def test_is_a_lease_that_waits(self):
        assert leases.on_asked(asked(), a_pool(), None, now=NOON) == (waiting(), ())

    @pytest.mark.parametrize(
        ("command", "pool", "code"),
        [
            (asked(pool="moon"), None, "unknown_pool"),
            (asked(), a_pool(is_removed=True), "unknown_pool"),
            (asked(purpose="serving"), a_pool(backend="slurm"), "not_local"),
            (asked(purpose="training", has_node=True), a_pool(backend="slurm"), "not_local"),
            (asked(devices=3, purpose="serving", has_node=True), a_pool(backend="slurm"), "too_many_devices"),
            (asked(devices=3), a_pool(), "too_many_devices"),
            (asked(until=NOON), a_pool(), "too_late"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_for_what_a_pool_cannot_lease_is_refused(self, command, pool, code):
        with pytest.raises(Refused) as refused:
            leases.on_asked(command, pool, None, now=NOON)
        assert (refused.value.code, refused.value.subject_id) == (code, "lease-1")

    def test_again_extends_what_is_held_and_says_until_when(self):
        known = held("lease-1", 1, 3)
        later = asked(until=UNTIL + SECOND)
        lease, [fact] = leases.on_asked(later, a_pool(), known, now=NOON)
        assert lease == replace(known, until=UNTIL + SECOND)
        assert (fact.until, fact.devices) == (UNTIL + SECOND, (3,))

    def test_again_shortens_nothing_and_changes_no_device(self):
        known = held("lease-1", 1, 3)
        lease, [fact] = leases.on_asked(asked(until=NOON), a_pool(), known, now=NOON)
        assert (lease, fact.until) == (known, UNTIL)

    def test_again_while_it_waits_lets_it_wait_for_longer(self):
        lease, events = leases.on_asked(asked(until=UNTIL + SECOND), a_pool(), waiting(), now=NOON)
        assert (lease, events) == (waiting(until=UNTIL + SECOND), ())

    def test_again_after_its_end_gives_nothing_and_says_how_it_ended(self):
        known = leases.on_end(held("lease-1", 0, 0), LeaseEnd.EXPIRED)
        lease, [fact] = leases.on_asked(asked(until=UNTIL + SECOND), a_pool(), known, now=NOON)
        assert (lease, type(fact), fact.reason) == (known, DeviceLeaseEnded, LeaseEnd.EXPIRED)

    @pytest.mark.parametrize("other", [asked(devices=2), asked(pool="other")], ids=["devices", "pool"])
    def test_for_something_else_by_the_same_id_is_refused(self, other):
        with pytest.raises(Refused) as refused:
            leases.on_asked(other, a_pool(), waiting(), now=NOON)
        assert refused.value.code == "lease_differs"


def test_a_lease_is_over_when_its_holders_processes_have_ended():
    lease = held("lease-1", 0, 0)
    assert not leases.is_over(lease, UNTIL + leases.FENCE - SECOND)
    assert leases.is_over(lease, UNTIL + leases.FENCE)


def test_who_waits_hears_who_has_the_devices():
    replica = held("serving-1", 1, 2, 3, purpose="serving")
    pool = a_full_pool(replica, waiting())
    assert leases.queued(waiting(), pool).waiting_for == (
        "1 device of one machine of pool spot: 2 held by jobs, 2 held by serving"
    )


class TestBesideJobs:
    def test_a_job_gets_no_device_that_a_lease_has_or_waits_for(self):
        pool = a_pool(nodes=1, leased={0: frozenset({0})}, leases=(held("a", 0, 0), waiting("b", 2)))
        decision = decide.on_job_scheduled(a_schedule(nodes=1), pool, now=NOON)
        assert types(decision) == [ProvisioningFailed]
        assert (decision.events[0].code, decision.events[0].message) == (
            "no_capacity",
            "1 node of 1 device asked, pool spot has free: none, 2 kept for scoring",
        )

    def test_a_job_gets_what_leases_leave(self):
        pool = a_pool(nodes=1, leased={0: frozenset({0})}, leases=(held("a", 0, 0),))
        decision = decide.on_job_scheduled(a_schedule(nodes=1), pool, now=NOON)
        assert [node.devices for node in decision.attempt.nodes] == [(1,)]

    def test_others_hear_what_is_leased_and_waited_for(self):
        pool = a_pool(nodes=1, leased={0: frozenset({0})}, leases=(held("a", 0, 0), waiting("b", 2)))
        capacity = pool.capacity
        assert (capacity.free, capacity.free_devices) == (0, 1)
        assert capacity.leases == (
            LeasedDevices(purpose="scoring", devices=1, machine=0),
            LeasedDevices(purpose="scoring", devices=2),
        )

    def test_a_pool_that_is_read_again_has_its_leases(self):
        known = a_pool(nodes=1, leased={0: frozenset({0})}, leases=(held("a", 0, 0),))
        [read_again] = pools.on_pools_read({"spot": known}, {"spot": a_pool(nodes=1)})
        assert read_again.leases == known.leases


ASKED = st.tuples(st.just("ask"), st.integers(1, 4))
ENDED = st.tuples(st.just("end"), st.integers(0, 20))
SCHEDULED = st.tuples(st.just("job"), st.integers(1, 2))


@given(st.lists(ASKED | ENDED | SCHEDULED, max_size=40), st.integers(1, 3))
def test_no_device_has_two_holders_and_who_can_be_served_does_not_wait(moves, nodes):
    pool = a_pool(nodes=nodes, devices_per_node=4)
    for number, (move, value) in enumerate(moves):
        if move == "ask":
            pool = replace(pool, leases=(*pool.leases, waiting(f"lease-{number}", value)))
        elif move == "end" and value < len(pool.leases):
            pool = without(pool, pool.leases[value])
        elif move == "job":
            pool = with_job(pool, number, value)
        pool = leases.serve(pool).pool
        of_leases = Counter(device for lease in pool.leases for device in lease.devices)
        assert not of_leases or of_leases.most_common(1)[0][1] == 1
        leased = [device for devices in pool.leased.values() for device in devices]
        assert len(leased) == len(set(leased)) <= nodes * 4
        assert set(of_leases) <= set(leased)
        if pool.queued_leases:
            assert max(pool.free.values()) < pool.queued_leases[0].num_devices


def without(pool: Pool, lease: Lease) -> Pool:
    left = {machine: devices - {*lease.devices} for machine, devices in pool.leased.items()}
    rest = tuple(each for each in pool.leases if each is not lease)
    return replace(pool, leased={machine: each for machine, each in left.items() if each}, leases=rest)


def with_job(pool: Pool, number: int, devices: int) -> Pool:
    """A job's devices are taken by the decision on jobs, which must leave those of leases."""
    schedule = a_schedule(nodes=1, job_id=f"ftjob-{number}", devices_per_node=devices)
    attempt = decide.on_job_scheduled(schedule, pool, now=NOON).attempt
    leased = dict(pool.leased)
    for node in attempt.nodes:
        assert node.machine is not None
        assert not leased.get(node.machine, frozenset()) & {*node.devices}
        leased[node.machine] = leased.get(node.machine, frozenset()) | {*node.devices}
    return replace(pool, leased=leased)
