"""Which pools suit a job, and which machines of a pool its nodes are on: tables, and what holds in every case."""

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.base import CapacityType, DeviceKind
from schemas.node import PoolCapacityChanged
from schemas.placement import (
    best_fit,
    demand,
    free_devices,
    left_by_waiting,
    needed_device,
    suits,
    taken,
    takes,
)
from schemas.specification import Resources

CPU, CUDA = DeviceKind.CPU, DeviceKind.CUDA
SIZE = 8


def a_pool(name: str = "h100", **changes: object) -> PoolCapacityChanged:
    fields = {
        "pool": name,
        "capacity_type": CapacityType.SPOT,
        "nodes": 4,
        "free": 4,
        "devices_per_node": SIZE,
        "price_per_hour": 1,
        "device": CUDA,
        "accelerator": "H100",
        "device_memory_bytes": 80 * 2**30,
    }
    return PoolCapacityChanged(**fields | changes)


def asking(**fields: object) -> Resources:
    return Resources(**fields)


class TestBestFit:
    @pytest.mark.parametrize(
        ("free", "nodes", "devices", "machines"),
        [
            ({0: 8, 1: 8}, 1, 1, (0,)),
            ({0: 8, 1: 3}, 1, 1, (1,)),
            ({0: 8, 1: 3, 2: 2}, 1, 2, (2,)),
            ({0: 8, 1: 3, 2: 2}, 1, 3, (1,)),
            ({0: 8, 1: 3, 2: 2}, 1, 4, (0,)),
            ({0: 7, 1: 3}, 1, 8, None),
            ({0: 8, 1: 7, 2: 8}, 2, 8, (0, 2)),
            ({0: 8, 1: 7, 2: 7}, 2, 8, None),
            ({2: 4, 1: 4}, 1, 4, (1,)),
            ({}, 1, 1, None),
        ],
    )
    def test_it_leaves_the_least_over(self, free, nodes, devices, machines):
        assert best_fit(free, nodes=nodes, devices=devices) == machines

    @given(
        st.lists(st.integers(0, SIZE), max_size=6).map(enumerate).map(dict),
        st.integers(1, 3),
        st.integers(1, SIZE),
    )
    def test_it_leaves_most_whole_machines_of_all_ways_that_there_are(self, free, nodes, asked):
        devices = SIZE if nodes > 1 else asked
        ways = [way for way in combinations(free, nodes) if all(free[machine] >= devices for machine in way)]
        chosen = best_fit(free, nodes=nodes, devices=devices)
        assert (chosen is None) == (not ways)
        if chosen is not None:
            assert whole(free, chosen, devices) == max(whole(free, way, devices) for way in ways)

    @given(st.lists(st.tuples(st.integers(1, 2), st.integers(1, SIZE), st.booleans()), max_size=60))
    def test_nothing_is_had_twice_whatever_comes_and_ends(self, jobs):
        """Each asks for nodes and devices, and some end before the next comes."""
        held, had = Counter[int](), list[tuple[tuple[int, ...], int]]()
        for nodes, asked, one_ends in jobs:
            if one_ends and had:
                machines, devices = had.pop(len(had) // 2)
                held.subtract(dict.fromkeys(machines, devices))
            devices = SIZE if nodes > 1 else asked
            free = {machine: SIZE - held[machine] for machine in range(4)}
            if machines := best_fit(free, nodes=nodes, devices=devices):
                assert len(set(machines)) == nodes
                assert nodes == 1 or all(held[machine] == 0 for machine in machines)
                held.update(dict.fromkeys(machines, devices))
                had.append((machines, devices))
            assert all(0 <= held[machine] <= SIZE for machine in range(4))


def whole(free, taken_machines, devices):
    return sum(left - devices * (machine in taken_machines) == SIZE for machine, left in free.items())


@pytest.mark.parametrize(
    ("nodes", "drained", "held", "free"),
    [
        (3, (), {}, {0: 8, 1: 8, 2: 8}),
        (2, (), {1: 3}, {0: 8, 1: 5}),
        (2, (0,), {0: 8, 1: 8}, {1: 0, 2: 8}),
        (1, (), {3: 3}, {3: 5}),
        (2, (), {3: 3}, {0: 8, 3: 5}),
        (2, (), {3: 1, 4: 1, 5: 1}, {3: 0, 4: 0}),
        (1, (0, 1), {0: 8, 1: 8}, {2: 8}),
        (0, (), {0: 1}, {}),
        (1, (), {0: 9}, {0: 0}),
    ],
    ids=[
        "all",
        "shared",
        "drained",
        "smaller, in use",
        "smaller, one in use",
        "smaller, more in use",
        "drained, in use",
        "none",
        "devices fewer",
    ],
)
def test_what_is_free_on_the_machines_that_take_work(nodes, drained, held, free):
    assert free_devices(a_pool(nodes=nodes), drained=drained, held=held) == free


class TestKind:
    GPUS, CPUS = a_pool(), a_pool("cpu", device=CPU, accelerator="cpu")
    UNKNOWN = a_pool("old", device=None, accelerator=None)

    @pytest.mark.parametrize(
        ("asked", "pools", "device"),
        [
            (asking(), [CPUS, GPUS], CUDA),
            (asking(), [CPUS, a_pool(nodes=0, free=0)], CUDA),
            (asking(), [CPUS, a_pool(nodes=0, free=0, is_removed=True)], CPU),
            (asking(), [CPUS], CPU),
            (asking(), [UNKNOWN], None),
            (asking(), [], None),
            (asking(device="cpu"), [CPUS, GPUS], CPU),
            (asking(device="cuda"), [CPUS], CUDA),
            (asking(pool="cpu"), [CPUS, GPUS], None),
            (asking(accelerators=["H100"]), [CPUS, GPUS], None),
        ],
    )
    def test_who_names_nothing_takes_gpus_where_there_are_any(self, asked, pools, device):
        assert needed_device(asked, pools) == device

    @pytest.mark.parametrize(
        ("asked", "names"),
        [
            (asking(), ["h100", "old"]),
            (asking(device="cpu"), ["cpu", "old"]),
            (asking(pool="cpu"), ["cpu"]),
            (asking(pool="cpu", device="cuda"), []),
            (asking(accelerators=["h100", "B200"]), ["h100"]),
            (asking(accelerators=["B200"]), []),
            (asking(devices_per_node=9), []),
            (asking(capacity_type="on-demand"), []),
            (asking(device_memory_gib=80), ["h100", "old"]),
            (asking(device_memory_gib=81), []),
        ],
    )
    def test_a_pool_suits_by_all_that_is_named(self, asked, names):
        pools = [self.GPUS, self.CPUS, self.UNKNOWN]
        needed = needed_device(asked, pools)
        assert [pool.name for pool in pools if suits(asked, pool, needed)] == names

    def test_what_an_operator_does_not_say_keeps_nobody_out(self):
        pool = a_pool(device_memory_bytes=None)
        assert suits(asking(device_memory_gib=1000), pool, CUDA)


@pytest.mark.parametrize(
    ("asked", "devices"),
    [({"devices_per_node": 3}, 3), ({"nodes": 2}, 16), ({"nodes": 2, "devices_per_node": 8}, 16)],
)
def test_a_gang_takes_whole_machines_and_one_node_its_devices(asked, devices):
    assert taken(asking(**asked), a_pool()) == devices


@pytest.mark.parametrize(("limit", "is_suited"), [(15, False), (16, True), (None, True)])
def test_a_pool_takes_no_job_that_is_too_large_for_its_limit(limit, is_suited):
    assert suits(asking(nodes=2), a_pool(max_devices_per_job=limit), CUDA) is is_suited


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (asking(), "1 device of one node (spot-first, cuda)"),
        (asking(accelerators=["H100", "B200"]), "1 device of one node (spot-first, H100 or B200)"),
        (
            asking(nodes=2, devices_per_node=8, device_memory_gib=80),
            "2 whole nodes with 8 devices each (spot-first, cuda, at least 80 GiB each)",
        ),
    ],
)
def test_it_is_shown_what_a_job_asks_for(asked, words):
    assert demand(asked, needed_device(asked, [a_pool()])) == words


@pytest.mark.parametrize(("tenants", "is_taken"), [((), True), (("acme",), True), (("other",), False)])
def test_a_pool_takes_the_jobs_of_its_tenants(tenants, is_taken):
    assert takes(a_pool(tenants=tenants), "acme") is is_taken


class TestWaitingLeases:
    @pytest.mark.parametrize(
        ("free", "asked", "left"),
        [
            ({0: 2, 1: 1}, (), {0: 2, 1: 1}),
            ({0: 2, 1: 1}, (4,), {0: 0, 1: 1}),
            ({0: 2, 1: 2}, (1,), {0: 1, 1: 2}),
            ({0: 2, 1: 2}, (4, 4), {0: 0, 1: 0}),
            ({}, (1,), {}),
        ],
        ids=["none", "the emptiest machine", "the lowest number", "each its own", "no machine"],
    )
    def test_keep_what_is_free_of_one_machine_each(self, free, asked, left):
        assert left_by_waiting(free, asked) == left

    @given(st.dictionaries(st.integers(0, 5), st.integers(0, 8)), st.lists(st.integers(1, 8), max_size=4))
    def test_keep_no_more_than_they_wait_for_and_no_more_than_there_is(self, free, asked):
        left = left_by_waiting(free, asked)
        assert left.keys() == free.keys()
        assert all(0 <= left[machine] <= free[machine] for machine in free)
        assert sum(free.values()) - sum(left.values()) <= sum(asked)
