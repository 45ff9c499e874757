"""Devices of machines: who shares one, what is kept for a job in front, and which pools a job goes to."""

from collections import Counter
from dataclasses import fields, replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.base import CapacityType, DeviceKind
from schemas.node import LeasedDevices, PoolCapacityChanged
from services.scheduler.decide.ledger import Pool, pool_of
from services.scheduler.decide.queue import why_waiting
from tests.builders import NOON, a_booking, a_ledger, a_pool
from tests.unit.scheduler.grants import grants
from tests.unit.scheduler.test_queue import SPOT, waiting

GPUS = {"device": DeviceKind.CUDA, "devices_per_node": 8}


def placed(candidates, *pools):
    """Job -> its machines."""
    ledger = a_ledger(*pools)
    return {each.candidate.job_id: each.placement.machines for each in grants(candidates, ledger, now=NOON)}


def a_line(**sizes):
    """Jobs in this order, each with (nodes, devices per node)."""
    return [
        waiting(name, minutes=9 - place, nodes=nodes, devices_per_node=devices)
        for place, (name, (nodes, devices)) in enumerate(sizes.items())
    ]


def test_a_pool_is_as_it_was_announced():
    fact = PoolCapacityChanged(
        pool="h100", capacity_type=CapacityType.SPOT, nodes=6, free=5, devices_per_node=8, price_per_hour="24.00",
        device=DeviceKind.CUDA, device_memory_bytes=80 * 2**30, accelerator="H100", drained=(1, 3),
        max_devices_per_job=16, tenants=("acme",), is_removed=True,
        leases=(LeasedDevices(purpose="serving", devices=2, machine=0),),
    )  # fmt: skip
    pool = pool_of(fact, now=NOON)
    shared = {field.name for field in fields(Pool)} & {*PoolCapacityChanged.model_fields} - {"free"}
    assert {"drained", "max_devices_per_job", "tenants", "is_removed", "leases"} < shared
    assert {name: getattr(pool, name) for name in shared} == {name: getattr(fact, name) for name in shared}
    assert (pool.name, pool.changed_at) == ("h100", NOON)


class TestSharing:
    @pytest.mark.parametrize(
        ("line", "machines"),
        [
            ({"a": (1, 1), "b": (1, 1), "c": (1, 8)}, {"a": (0,), "b": (0,), "c": (1,)}),
            ({"a": (1, 5), "b": (1, 4), "c": (1, 3)}, {"a": (0,), "b": (1,), "c": (0,)}),
            ({"a": (1, 1), "gang": (2, 1)}, {"a": (0,)}),
            ({"gang": (2, 1), "a": (1, 1)}, {"gang": (0, 1)}),
            ({"a": (1, 5), "b": (1, 5), "c": (1, 4)}, {"a": (0,), "b": (1,)}),
        ],
        ids=[
            "beside each other",
            "the fullest first",
            "a gang needs whole ones",
            "and takes them",
            "no room",
        ],
    )
    def test_on_two_machines_of_eight(self, line, machines):
        assert placed(a_line(**line), a_pool(nodes=2, **GPUS)) == machines

    def test_what_is_held_is_known_by_machine(self):
        pool = a_pool(nodes=3, bookings=[a_booking(1, devices=5), a_booking(2, devices=8)], **GPUS)
        assert (dict(pool.free), pool.free_devices, pool.most_free) == ({0: 8, 1: 3, 2: 0}, 11, 8)

    @pytest.mark.parametrize(
        ("changes", "free"),
        [
            ({"drained": (0,)}, {1: 7, 2: 8}),
            ({"nodes": 1}, {1: 7}),
            ({"nodes": 0}, {}),
            ({"devices_per_node": 1}, {0: 1, 1: 0}),
        ],
    )
    def test_of_a_pool_that_became_smaller_those_in_use_count_first(self, changes, free):
        booked = [a_booking(1, devices=1)]
        pool = replace(a_pool(nodes=2, **GPUS), **changes).with_bookings(booked)
        assert dict(pool.free) == free

    @given(st.lists(st.tuples(st.sampled_from([1, 1, 1, 2, 3]), st.integers(1, 8)), max_size=30))
    def test_no_device_is_given_twice_and_gangs_have_their_machines_alone(self, sizes):
        line = [
            waiting(f"job-{n}", minutes=60 - n, nodes=nodes, devices_per_node=devices)
            for n, (nodes, devices) in enumerate(sizes)
        ]
        held, alone = Counter(), []
        for grant in grants(line, a_ledger(a_pool(nodes=4, **GPUS)), now=NOON):
            place = grant.placement
            assert len(set(place.machines)) == place.nodes
            held.update(dict.fromkeys(place.machines, place.taken_per_node))
            alone += place.machines if place.nodes > 1 else ()
        assert all(count <= 8 for count in held.values())
        assert all(held[machine] == 8 for machine in alone)


class TestReservation:
    def started_beside(self, large, *others, pool):
        return placed([large, *others], pool)

    def test_a_job_that_wants_a_whole_machine_waits_for_the_one_that_is_free_first(self):
        soon, later = NOON + timedelta(minutes=10), NOON + timedelta(hours=9)
        bookings = [a_booking(0, devices=4, ends_by=later), a_booking(1, devices=4, ends_by=soon)]
        pool = a_pool(nodes=2, bookings=bookings, **GPUS)
        large = waiting("large", tenant="other", minutes=30, devices_per_node=8)
        small = [waiting(f"small-{n}", minutes=9 - n, devices_per_node=2) for n in range(3)]
        assert self.started_beside(large, *small, pool=pool) == {"small-0": (0,), "small-1": (0,)}

    def test_of_machines_that_are_free_together_it_waits_for_the_one_that_others_can_use_least(self):
        soon = NOON + timedelta(minutes=10)
        bookings = [a_booking(0, devices=2, ends_by=soon), a_booking(1, devices=6, ends_by=soon)]
        large = waiting("large", tenant="other", minutes=30, devices_per_node=8)
        small = waiting("small", devices_per_node=6)
        assert self.started_beside(large, small, pool=a_pool(nodes=2, bookings=bookings, **GPUS)) == {
            "small": (0,)
        }

    def test_what_it_leaves_of_its_machine_is_for_others(self):
        pool = a_pool(
            nodes=1, bookings=[a_booking(0, devices=5, ends_by=NOON + timedelta(minutes=10))], **GPUS
        )
        large = waiting("large", tenant="other", minutes=30, devices_per_node=6)
        small = [waiting(f"small-{n}", minutes=9 - n) for n in range(3)]
        assert self.started_beside(large, *small, pool=pool) == {"small-0": (0,), "small-1": (0,)}

    def test_who_is_over_before_may_have_all_of_it(self):
        pool = a_pool(
            nodes=1, bookings=[a_booking(0, devices=5, ends_by=NOON + timedelta(minutes=10))], **GPUS
        )
        large = waiting("large", tenant="other", minutes=30, devices_per_node=8)
        quick = waiting("quick", devices_per_node=3, longest=timedelta(minutes=10))
        assert self.started_beside(large, quick, waiting("small"), pool=pool) == {"quick": (0,)}

    def test_of_a_machine_whose_end_nobody_knows_it_leaves_nothing_to_others(self):
        pool = replace(a_pool(nodes=2, **GPUS), free={0: 0, 1: 5})
        large = waiting("large", tenant="other", minutes=30, devices_per_node=8)
        assert self.started_beside(large, waiting("small"), pool=pool) == {}

    @pytest.mark.parametrize(("minutes", "spare"), [(10, {0: 2}), (11, {0: 1}), (None, {0: 1})])
    def test_what_it_leaves_becomes_less_by_those_who_are_not_over_before(self, minutes, spare):
        booking = a_booking(0, devices=5, ends_by=NOON + timedelta(minutes=10))
        pool = a_pool(nodes=1, bookings=[booking], **GPUS)
        reserved = pool.with_reservation(waiting("large", minutes=30, devices_per_node=6), NOON)
        assert reserved.reserved.spare == {0: 2}
        longest = None if minutes is None else timedelta(minutes=minutes)
        booked = reserved.with_booking(waiting("small", longest=longest), NOON)
        assert booked.reserved.spare == spare
        assert dict(booked.free) == {0: 2}
        ends_by = None if longest is None else NOON + longest
        assert booked.bookings == (booking, a_booking(0, since=NOON, ends_by=ends_by))
        assert pool.with_booking(waiting("small"), NOON).reserved is None


def test_the_dominant_type_is_that_of_the_greatest_part_however_few_it_has_of_it():
    small = a_pool("small-spot", nodes=2, device=DeviceKind.CUDA)
    ledger = a_ledger(a_pool(nodes=9), small, acme={SPOT: 3, "small-spot": 2})
    assert ledger.dominant_type_of("acme") == small.device_type


class TestKinds:
    CPU = a_pool("cpu-spot", device=DeviceKind.CPU, price_per_hour=1)
    GPU = a_pool("gpu-spot", device=DeviceKind.CUDA, accelerator="H100", price_per_hour=90)

    @pytest.mark.parametrize(
        ("changes", "pools", "pool"),
        [
            ({}, (CPU, GPU), "gpu-spot"),
            ({}, (CPU,), "cpu-spot"),
            ({}, (CPU, a_pool("gpu-spot", booked=2, device=DeviceKind.CUDA)), None),
            ({"device": "cpu"}, (CPU, GPU), "cpu-spot"),
            ({"device": "cpu"}, (GPU,), None),
            ({"pool": "cpu-spot"}, (CPU, GPU), "cpu-spot"),
            ({"accelerators": ["H100"]}, (CPU, GPU), "gpu-spot"),
            ({"accelerators": ["B200"]}, (CPU, GPU), None),
        ],
    )
    def test_price_decides_among_pools_of_the_kind_that_a_job_needs(self, changes, pools, pool):
        granted = grants([waiting(**changes)], a_ledger(*pools), now=NOON)
        assert [each.placement.pool for each in granted] == ([pool] if pool else [])

    def test_the_price_is_that_of_what_it_takes(self):
        large = a_pool("a-spot", devices_per_node=8, price_per_hour=8)
        small = a_pool("b-spot", devices_per_node=2, price_per_hour=4)
        alone, gang = waiting("alone"), waiting("gang", nodes=2, tenant="other")
        assert placed([alone], large, small) == {"alone": (0,)}
        [granted] = grants([alone], a_ledger(large, small), now=NOON)
        [of_gang] = grants([gang], a_ledger(large, small), now=NOON)
        assert (granted.placement.pool, of_gang.placement.pool) == ("a-spot", "b-spot")

    def test_a_pool_of_other_tenants_is_none(self):
        pools = (self.CPU, replace(self.GPU, tenants=("other",)))
        assert placed([waiting()], *pools) == {"job-1": (0,)}
        [granted] = grants([waiting()], a_ledger(*pools), now=NOON)
        assert granted.placement.pool == "cpu-spot"
        assert "known: cpu-spot" in why_waiting(waiting(pool="gpu-spot"), a_ledger(*pools), now=NOON)

    def test_a_job_is_shown_the_kind_that_it_waits_for(self):
        full = replace(self.GPU, free={0: 0, 1: 0})
        assert why_waiting(waiting(), a_ledger(self.CPU, full), now=NOON) == (
            "waits for 1 device of one node (spot-first, cuda): gpu-spot has 0 of 2 devices free"
        )


def test_it_is_shown_where_enough_is_free_and_not_on_one_machine():
    pool = a_pool(nodes=2, bookings=[a_booking(0, devices=6), a_booking(1, devices=5)], **GPUS)
    assert why_waiting(waiting(devices_per_node=4), a_ledger(pool), now=NOON) == (
        f"waits for 4 devices of one node (spot-first, cuda): {SPOT} has 5 of 16 devices free, "
        "at most 3 on one node"
    )


class TestLeases:
    """Devices that services have leased, or wait for, are none for jobs."""

    HELD = LeasedDevices(purpose="serving", devices=2, machine=0)
    WAITING = LeasedDevices(purpose="scoring", devices=1)

    def test_are_taken_from_what_is_free_beside_what_jobs_hold(self):
        pool = a_pool(nodes=2, devices_per_node=4, leases=(self.HELD,), bookings=[a_booking(0)])
        assert (pool.free, pool.devices) == ({0: 1, 1: 4}, 8)

    def test_that_wait_keep_what_is_free_of_the_emptiest_machine(self):
        bookings = [a_booking(0, devices=4), a_booking(1, devices=3)]
        pool = a_pool(nodes=2, devices_per_node=4, leases=(self.WAITING,), bookings=bookings)
        assert pool.free == {0: 0, 1: 0}

    def test_count_for_no_tenants_share(self):
        ledger = a_ledger(a_pool(nodes=2, leases=(self.HELD,)))
        assert ledger.devices_held == {}

    def test_leave_no_machine_to_a_gang(self):
        pool = a_pool(nodes=2, devices_per_node=4, leases=(self.HELD,))
        assert placed(a_line(gang=(2, 4), small=(1, 2)), pool) == {"small": (0,)}

    def test_are_named_where_a_job_waits_for_their_devices(self):
        pool = a_pool(SPOT, nodes=1, devices_per_node=3, leases=(self.HELD, self.WAITING))
        asked = waiting("job", devices_per_node=1, pool=SPOT)
        assert why_waiting(asked, a_ledger(pool), now=NOON) == (
            f"waits for 1 device of one node (spot-first): {SPOT} has 0 of 3 devices free "
            "(2 held by serving, 1 kept for scoring)"
        )
