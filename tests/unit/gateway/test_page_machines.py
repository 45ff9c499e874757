"""Machines for the operator: what takes no work is first and says why; what is held says by whom."""

from datetime import timedelta
from typing import Any

from schemas.node import AllocatedNode, FailureKind, LeasedDevices, MachineFailure, PoolCapacityChanged
from services.gateway.machines import Cordon, HeldNodes
from services.gateway.page.machines import KINDS, SHOWN, Pool, pools
from services.gateway.page.render import text
from tests.builders import NOON


def a_pool(**changes: Any) -> PoolCapacityChanged:
    fields = {
        "pool": "a100", "capacity_type": "spot", "nodes": 4, "free": 2, "devices_per_node": 8, "price_per_hour": "12.4",
    }  # fmt: skip
    return PoolCapacityChanged.model_validate(fields | changes)


def a_node(machine: int | None = 0, **changes: Any) -> AllocatedNode:
    fields = {
        "node_id": f"node-{machine}", "index": 0, "price_per_hour": 1, "machine": machine, "devices": (0, 1),
        "allocated_at": NOON,
    }  # fmt: skip
    return AllocatedNode.model_validate(fields | changes)


def held(*nodes: AllocatedNode, pool: str = "a100", job: str = "ftjob-1") -> HeldNodes:
    return HeldNodes(job_id=job, tenant="demo", attempt=2, pool=pool, nodes=nodes)


def a_cordon(machine: str, pool: str = "a100") -> Cordon:
    return Cordon(pool=pool, machine=machine, source="operator", reason="fan is loud", changed_at=NOON)


def a_failure(machine: str = "gpu-7", job: str = "ftjob-1", **changes: Any) -> MachineFailure:
    fields = {
        "machine": machine, "kind": "node_lost", "job_id": job, "attempt": 2, "node_id": f"{job}-n0",
        "failed_at": NOON - timedelta(hours=1), "counts_until": NOON + timedelta(hours=23), "message": "no heartbeat",
    }  # fmt: skip
    return MachineFailure.model_validate(fields | changes)


def with_failures(*failures: MachineFailure, after: int | None = 3, **changes: Any) -> PoolCapacityChanged:
    return a_pool(failures=failures, cordon_after_failures=after, cordon_after_jobs=2, **changes)


def rendered(fact: PoolCapacityChanged, *holders: HeldNodes, cordons: tuple[Cordon, ...] = ()) -> Pool:
    """The pool as the template takes it."""
    (pool,) = pools([fact], holders, cordons, now=NOON)
    html = text("admin_machines_parts.html.jinja", pools=[pool], now=NOON)
    assert all(machine.name in html for machine in pool.machines)
    return pool


def states_of(pool: Pool) -> list[tuple[str, str, int]]:
    return [(machine.name, machine.state, machine.devices) for machine in pool.machines]


def test_machines_of_which_nothing_is_held_are_counted_alone():
    assert rendered(a_pool()).machines == ()


def test_devices_of_jobs_and_leases_on_one_machine_are_added():
    lease = LeasedDevices(purpose="serving", devices=3, machine=1)
    waiting = LeasedDevices(purpose="scoring", devices=1)
    others = held(a_node(1), pool="h100", job="ftjob-3")
    pool = rendered(
        a_pool(leases=(lease, waiting)), held(a_node(1), a_node(2)), held(a_node(1), job="ftjob-2"), others
    )
    assert states_of(pool) == [("1", "in use", 7), ("2", "in use", 2)]
    assert [holder.job_id for holder in pool.machines[0].held_by] == ["ftjob-1", "ftjob-2"]
    assert pool.machines[0].leased_for == ("serving",)


def test_nodes_that_were_given_back_hold_nothing():
    assert rendered(a_pool(), held(a_node(1, released_at=NOON), a_node(2))).machines[0].name == "2"


def test_what_takes_no_work_is_first_and_says_why():
    fact = a_pool(cordoned=("10", "9"), drained=(1, 9))
    pool = rendered(fact, held(a_node(0), a_node(1)), cordons=(a_cordon("10"), a_cordon("9", pool="h100")))
    assert states_of(pool) == [
        ("9", "cordoned", 0), ("10", "cordoned", 0), ("1", "drained", 2), ("0", "in use", 2),
    ]  # fmt: skip
    nine, ten = pool.machines[:2]
    assert (nine.reason, nine.source) == ("", ""), "it was cordoned before reasons were kept"
    assert (ten.reason, ten.source, ten.since) == ("fan is loud", "operator", NOON)


def test_a_machine_of_a_cluster_is_cordoned_by_its_host():
    pool = rendered(
        a_pool(cordoned=("gpu-7",)),
        held(a_node(3, host="gpu-7"), a_node(None, host="gpu-8")),
        cordons=(a_cordon("gpu-7"),),
    )
    assert states_of(pool) == [("gpu-7", "cordoned", 2), ("gpu-8", "in use", 2)]


def test_a_node_whose_devices_are_not_known_has_all_of_its_machine():
    assert states_of(rendered(a_pool(), held(a_node(0, devices=())))) == [("0", "in use", 8)]


def test_of_many_machines_those_that_take_no_work_are_kept():
    nodes = [a_node(number) for number in range(SHOWN + 20)]
    pool = rendered(a_pool(nodes=500, cordoned=("400",)), held(*nodes))
    assert (pool.machines[0].name, len(pool.machines), pool.num_left_out) == ("400", SHOWN, 21)


def test_a_machine_has_its_failures_and_what_of_them_counts():
    fact = with_failures(a_failure(), a_failure(job="ftjob-2"), a_failure("gpu-8", job="ftjob-2"))
    pool = rendered(fact, held(a_node(3, host="gpu-7")))
    assert [(each.name, each.state, len(each.failures)) for each in pool.machines] == [
        ("3", "in use", 2),
        ("gpu-8", "free", 1),
    ]
    assert pool.machines[0].counted == "counting 2 from 2 jobs; cordoned at 3 from 2 jobs"


def test_failures_of_a_day_ago_and_before_an_uncordon_do_not_count():
    fact = with_failures(a_failure(counts_until=NOON), a_failure(counts_until=None))
    assert rendered(fact).machines[0].counted == "none counts; cordoned at 3 from 2 jobs"


def test_where_the_platform_cordons_nothing_it_says_so():
    assert rendered(with_failures(a_failure(), after=0)).machines[0].counted == (
        "only an operator cordons machines of this pool"
    )
    assert rendered(with_failures(a_failure(), after=None)).machines[0].counted == ""


def test_every_failure_is_shown_with_its_kind_job_attempt_and_words():
    lost, failed, older = (
        a_failure(),
        a_failure(kind="training_failed", job="ftjob-2"),
        a_failure(kind=None, job="ftjob-3"),
    )
    (pool,) = pools([with_failures(lost, failed, older)], [], [], now=NOON)
    assert [each.what for each in pool.failures] == ["node lost", "training failed", "unknown"]
    html = text("admin_machines_parts.html.jinja", pools=[pool], now=NOON)
    assert all(
        part in html for part in ("node lost", "training failed", "ftjob-2", "attempt 2", "no heartbeat")
    )


def test_a_failure_under_a_lease_is_shown_with_the_lease_and_whose_it_was():
    fields = {
        "machine": "gpu-7", "lease_id": "lease-1", "holder": "serving_controller", "purpose": "serving",
        "node_id": "r-1-e1-n0", "devices": (0, 1), "failed_at": NOON, "counts_until": NOON + timedelta(hours=24),
        "has_lost_machine": True, "message": "the machine is off",
    }  # fmt: skip
    fact = with_failures(a_failure(), lease_failures=(fields, {**fields, "has_lost_machine": False}))
    pool = rendered(fact)
    assert [each.what for each in pool.failures] == ["machine lost", "node ended", "node lost"]
    assert pool.failures[0].of == "leased for serving by serving_controller"
    assert (pool.machines[0].name, len(pool.machines[0].failures)) == ("gpu-7", 3)
    assert pool.machines[0].counted.startswith("counting 3 from 3 jobs or service(s); cordoned at 3")
    html = text("admin_machines_parts.html.jinja", pools=[pool], now=NOON)
    assert all(part in html for part in ("lease-1", "the machine is off", "leased for serving"))


def test_every_kind_of_failure_has_a_word():
    assert {*KINDS} == {None, *FailureKind}
