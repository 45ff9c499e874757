"""The provisioner's decisions on pools: which devices of which machines an attempt has."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.base import CapacityType
from schemas.job import JobScheduled
from schemas.node import ProvisioningFailed
from services.provisioner import decide, pools
from services.provisioner.decide import Create
from services.provisioner.model import Attempt, AttemptState, Node, Pool
from tests.unit.provisioner.attempts import NOON, START_DEADLINE, a_pool, a_schedule, types


class TestReservation:
    def test_takes_the_whole_gang_and_asks_the_engine(self):
        decision = decide.on_job_scheduled(a_schedule(nodes=3), a_pool(), now=NOON)
        assert decision.attempt.held == 3
        assert [node.node_id for node in decision.attempt.nodes] == [
            f"a-ftjob-1-e1-n{index}" for index in range(3)
        ]
        assert (decision.events, decision.actions) == ((), (Create(),))

    def test_keeps_what_the_schedule_and_the_pool_say(self):
        decision = decide.on_job_scheduled(a_schedule(nodes=1), a_pool(device="cuda"), now=NOON)
        assert decision.attempt == Attempt(
            "ftjob-1",
            1,
            "acme",
            AttemptState.CREATING,
            pool="spot",
            capacity_type=CapacityType.SPOT,
            devices_per_node=1,
            device="cuda",
            grace_seconds=30,
            start_deadline=START_DEADLINE,
            nodes=(Node("a-ftjob-1-e1-n0", 0, Decimal("0.10"), allocated_at=NOON, machine=0, devices=(0,)),),
        )

    def test_takes_the_last_nodes_of_a_pool(self):
        decision = decide.on_job_scheduled(a_schedule(nodes=2), a_pool(nodes=3, held=1), now=NOON)
        assert decision.attempt.held == 2

    @pytest.mark.parametrize(
        ("event", "pool", "code"),
        [
            (a_schedule(nodes=2), a_pool(nodes=3, held=2), "no_capacity"),
            (a_schedule(nodes=2), a_pool(nodes=2, leased={1: frozenset({3})}), "no_capacity"),
            (a_schedule(nodes=1, machines=(0,)), a_pool(nodes=3, held=1), "no_capacity"),
            (a_schedule(nodes=2, machines=(1, 1)), a_pool(), "no_capacity"),
            (a_schedule(nodes=1, machines=(4,)), a_pool(), "no_capacity"),
            (a_schedule(nodes=1, machines=(2,)), a_pool(drained=(2,)), "no_capacity"),
            (a_schedule(nodes=1), a_pool(nodes=1, held=2), "no_capacity"),
            (a_schedule(pool="moon"), None, "unknown_pool"),
            (a_schedule(devices_per_node=3), a_pool(), "too_many_devices"),
        ],
        ids=[
            "one short",
            "a gang needs whole machines",
            "the named machine is held",
            "one machine named twice",
            "a machine that there is not",
            "drained",
            "capacity was lowered",
            "unknown pool",
            "devices",
        ],
    )
    def test_takes_nothing_that_does_not_fit(self, event, pool, code):
        decision = decide.on_job_scheduled(event, pool, now=NOON)
        assert types(decision) == [ProvisioningFailed]
        assert decision.events[0].code == code
        assert (decision.attempt.held, decision.attempt.state) == (0, AttemptState.REFUSED)
        assert decision.actions == ()


@pytest.mark.parametrize(
    ("event", "pool", "message"),
    [
        (a_schedule(pool="moon"), None, "no pool moon"),
        (a_schedule(devices_per_node=3), a_pool(), "3 devices per node asked, pool spot has 2"),
        (
            a_schedule(nodes=2),
            a_pool(nodes=3, leased={0: frozenset({0}), 1: frozenset({2, 3})}),
            "2 nodes of 2 devices asked, pool spot has free: 1 on machine 0, 2 on machine 2",
        ),
        (
            a_schedule(nodes=2, machines=(0, 1)),
            a_pool(nodes=2, held=2),
            "2 nodes of 2 devices asked, machines 0, 1, pool spot has free: none",
        ),
    ],
    ids=["unknown pool", "devices", "too few machines", "named machines"],
)
def test_a_refusal_says_what_was_asked_and_what_is_free(event, pool, message):
    (event,) = decide.on_job_scheduled(event, pool, now=NOON).events
    assert event.message == message


def leases(event: JobScheduled, pool: Pool) -> list[tuple[int | None, tuple[int, ...]]]:
    """Machine and devices of each node."""
    nodes = decide.on_job_scheduled(event, pool, now=NOON).attempt.nodes
    return [(node.machine, node.devices) for node in nodes]


class TestLeases:
    @pytest.mark.parametrize(
        ("changes", "leased", "expected"),
        [
            ({"nodes": 1}, {}, [(0, (0,))]),
            ({"nodes": 1}, {0: {0}}, [(0, (1,))]),
            ({"nodes": 1}, {0: {0, 1}, 1: {3}}, [(1, (2,))]),
            ({"nodes": 1, "devices_per_node": 2}, {0: {0}}, [(1, (2, 3))]),
            ({"nodes": 2}, {0: {1}}, [(1, (2, 3)), (2, (4, 5))]),
            ({"nodes": 1, "machines": (3,)}, {}, [(3, (6,))]),
            ({"nodes": 2, "machines": (1, 3)}, {}, [(1, (2, 3)), (3, (6, 7))]),
        ],
        ids=["first", "beside", "the fullest", "two", "a gang has them whole", "as named", "a gang as named"],
    )
    def test_a_node_gets_the_lowest_free_devices_of_its_machine(self, changes, leased, expected):
        pool = a_pool(leased={machine: frozenset(devices) for machine, devices in leased.items()})
        assert leases(a_schedule(**changes), pool) == expected

    def test_a_pool_may_begin_at_another_device_of_this_machine(self):
        assert leases(a_schedule(nodes=1, devices_per_node=2), a_pool(first_device=4)) == [(0, (4, 5))]

    def test_what_is_leased_from_before_the_file_said_fewer_devices_is_given_to_nobody(self):
        """Machine 1 had devices 2 and 3, which are those of machines 2 and 3 now."""
        pool = a_pool(devices_per_node=1, leased={1: frozenset({2, 3})})
        assert pool.free == {0: 1, 1: 0, 2: 0, 3: 0}

    @pytest.mark.parametrize(("changes", "price"), [({"nodes": 1}, "0.10"), ({"nodes": 2}, "0.20")])
    def test_a_node_costs_what_its_devices_cost(self, changes, price):
        node, *_ = decide.on_job_scheduled(a_schedule(**changes), a_pool(), now=NOON).attempt.nodes
        assert node.price_per_hour == Decimal(price)

    @given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 2), st.booleans()), max_size=40))
    def test_no_device_is_leased_twice_whatever_comes_and_goes(self, jobs):
        held: list[Attempt] = []
        for number, (nodes, devices, one_ends) in enumerate(jobs):
            if one_ends and held:
                held.pop(number % len(held))
            event = a_schedule(job_id=f"ftjob-{number}", nodes=nodes, devices_per_node=devices)
            attempt = decide.on_job_scheduled(event, a_pool(leased=leased_by(held)), now=NOON).attempt
            held += [attempt] if attempt.nodes else []
            devices_held = [device for each in held for node in each.nodes for device in node.devices]
            assert len(devices_held) == len(set(devices_held))
            assert set(devices_held) <= set(range(8))
            for node in attempt.nodes if nodes > 1 else ():
                assert len(node.devices) == 2, "a gang has its machines whole"


def leased_by(attempts: list[Attempt]) -> dict[int, frozenset[int]]:
    leased: dict[int, set[int]] = {}
    for node in (node for attempt in attempts for node in attempt.nodes):
        leased.setdefault(node.machine, set()).update(node.devices)
    return {machine: frozenset(devices) for machine, devices in leased.items()}


class TestPools:
    def test_a_new_pool_is_as_the_file_says(self):
        assert pools.on_pools_read({}, {"spot": a_pool()}) == [a_pool()]

    def test_an_operators_capacity_holds_until_the_file_says_something_new(self):
        known = {"spot": a_pool(nodes=4, held=1, drained=(2,), file_nodes=2)}
        kept = pools.on_pools_read(known, {"spot": a_pool(nodes=2)})[0]
        assert (kept.nodes, kept.free) == (4, {0: 0, 1: 2, 3: 2, 4: 2})
        changed = pools.on_pools_read(known, {"spot": a_pool(nodes=3)})[0]
        assert (changed.nodes, changed.free) == (3, {0: 0, 1: 2, 2: 2})

    def test_of_a_cluster_that_is_counted_are_its_machines_but_for_those_that_are_cordoned(self):
        machines = frozenset({"n1", "n2", "n3"})
        counted = pools.on_counted(a_pool(nodes=0, file_nodes=None, cordoned=("n2", "sold")), machines)
        assert counted.nodes == 2
        assert pools.on_counted(a_pool(nodes=4), machines).nodes == 4
        [read_again] = pools.on_pools_read({"spot": counted}, {"spot": a_pool(nodes=0, file_nodes=None)})
        assert read_again.nodes == 2
        [said] = pools.on_pools_read({"spot": counted}, {"spot": a_pool(nodes=5)})
        assert said.nodes == 3
        [counted_now] = pools.on_pools_read(
            {"spot": a_pool(nodes=4)}, {"spot": a_pool(nodes=0, file_nodes=None)}
        )
        assert counted_now.nodes == 4, "until it is counted"

    def test_prices_follow_the_file(self):
        dearer = a_pool(price_per_device_hour=Decimal(9))
        assert pools.on_pools_read({"spot": a_pool()}, {"spot": dearer})[0].price_per_device_hour == 9

    def test_a_pool_that_left_the_file_gives_no_more_nodes(self):
        known = a_pool(nodes=1, held=1, drained=(2,))
        [gone] = pools.on_pools_read({"spot": known}, {})
        assert gone == replace(known, nodes=0, file_nodes=0, drained=(), is_removed=True)
        assert (gone.capacity.free, gone.capacity.free_devices) == (0, 0)
        [again] = pools.on_pools_read({"spot": gone}, {"spot": a_pool(nodes=1)})
        assert again.nodes == 1
        back = pools.on_pools_read({"spot": replace(a_pool(), is_removed=True)}, {"spot": a_pool()})[0]
        assert not back.is_removed

    def test_free_is_never_negative(self):
        capacity = a_pool(nodes=1, held=3).capacity
        assert (capacity.free, capacity.free_devices) == (0, 0)

    def test_of_a_machine_that_is_shared_the_devices_are_free_and_the_node_is_not(self):
        capacity = a_pool(nodes=3, leased={1: frozenset({2})}).capacity
        assert (capacity.free, capacity.free_devices, capacity.price_per_hour) == (2, 5, Decimal("0.20"))
