"""The record of machines: which failures count, when one is cordoned, and what an attempt avoids."""

import re
from dataclasses import replace
from datetime import timedelta

import pytest

from deploy.local.settings import REPOSITORY
from schemas.node import EXIT_FENCED, FailureKind, LeaseFailure
from services.provisioner import decide, pools
from services.provisioner.backends.protocol import AttemptStatus, Cause, Member, MemberState
from services.provisioner.decide import Create
from services.provisioner.machines import (
    FAILURES_WITHIN,
    NUM_ANNOUNCED,
    Failure,
    avoided,
    capacity,
    cordon_after,
    failure_of,
    failure_of_lease,
    is_recent,
    lost_unnoticed,
    on_cordon,
    on_uncordon,
)
from services.provisioner.model import Lease, LeaseNode, LeaseNodeState, LeaseState, Pool
from shared.errors import Refused
from tests.unit.provisioner.attempts import NOON, a_pool, a_schedule, running


def a_cluster(*, nodes: int = 4, **changes: object) -> Pool:
    """A pool of another backend, whose machines have names."""
    return a_pool(nodes=nodes, **({"backend": "slurm", "cordon_after_failures": 3} | changes))


def failures(*job_ids: str, machine: str = "n1", devices: tuple[int, ...] = ()) -> list[Failure]:
    return [
        Failure(
            f"{job}-{place}", "spot", machine, devices, job, 1, NOON + timedelta(seconds=place), f"no {place}"
        )
        for place, job in enumerate(job_ids)
    ]


class TestFailure:
    def test_of_a_cluster_is_of_the_host(self):
        attempt = running()
        nodes = tuple(replace(node, host=f"n{node.index}") for node in attempt.nodes)
        attempt = replace(attempt, nodes=nodes)
        failure = failure_of(attempt, a_cluster(), "a-ftjob-1-e1-n1", FailureKind.NODE_LOST, "gone", now=NOON)
        assert failure == Failure(
            "a-ftjob-1-e1-n1", "spot", "n1", (2, 3), "ftjob-1", 1, NOON, "gone", FailureKind.NODE_LOST
        )

    def test_of_this_machine_is_of_the_number_and_its_devices(self):
        failure = failure_of(running(), a_pool(), "a-ftjob-1-e1-n1", FailureKind.NODE_LOST, "gone", now=NOON)
        assert (failure.machine, failure.devices) == ("1", (2, 3))

    def test_without_a_known_machine_or_node_is_not_kept(self):
        assert (
            failure_of(running(), a_cluster(), "a-ftjob-1-e1-n1", FailureKind.NODE_LOST, "gone", now=NOON)
            is None
        )
        assert (
            failure_of(running(), a_pool(), "a-ftjob-1-e1-n7", FailureKind.NODE_LOST, "gone", now=NOON)
            is None
        )
        nodes = tuple(replace(node, machine=None) for node in running().nodes)
        assert (
            failure_of(
                running(nodes=nodes), a_pool(), "a-ftjob-1-e1-n1", FailureKind.NODE_LOST, "gone", now=NOON
            )
            is None
        )


def test_the_operators_view_counts_failures_for_as_long():
    migrations = sorted((REPOSITORY / "services/provisioner/migrations").glob("*.sql"))
    newest = [text for path in migrations if "VIEW operator_machine AS" in (text := path.read_text())][-1]
    assert {timedelta(hours=int(hours)) for hours in re.findall(r"interval '(\d+) hours'", newest)} == {
        FAILURES_WITHIN
    }


class TestCapacity:
    def test_has_the_newest_failures_and_until_when_each_counts(self):
        failure, past = failures("a", "b")
        fact = capacity(
            a_cluster(), [replace(failure, kind=FailureKind.NODE_LOST), replace(past, is_past=True)]
        )
        assert [(each.job_id, each.machine, each.attempt, each.kind) for each in fact.failures] == [
            ("a", "n1", 1, FailureKind.NODE_LOST),
            ("b", "n1", 1, None),
        ]
        assert [each.counts_until for each in fact.failures] == [NOON + FAILURES_WITHIN, None]
        assert (fact.cordon_after_failures, fact.cordon_after_jobs) == (3, 2)

    def test_of_this_machine_nothing_is_cordoned_by_failures(self):
        assert capacity(a_pool(cordon_after_failures=3), []).cordon_after_failures == 0

    def test_is_bounded(self):
        many = [replace(failure, message="x" * 3000) for failure in failures(*["a"] * (NUM_ANNOUNCED + 1))]
        fact = capacity(a_cluster(), many)
        assert [each.node_id for each in fact.failures] == [each.node_id for each in many[:NUM_ANNOUNCED]]
        assert type(fact).model_validate_json(fact.model_dump_json()) == fact


class TestLostUnnoticed:
    def test_are_machines_that_the_cluster_lost_and_nobody_reported(self):
        attempt = running()
        members = (
            Member(0, MemberState.ENDED, cause=Cause.NODE_LOST, host="n1"),
            Member(1, MemberState.ENDED, cause=Cause.NODE_LOST, host="n2", has_lost_machine=True),
        )
        status = AttemptStatus(attempt.name, members)
        [node] = lost_unnoticed(attempt, status)
        assert (node.index, node.host) == (1, "n2")
        reported = attempt.with_node(replace(attempt.nodes[1], has_ended=True))
        assert lost_unnoticed(reported, status) == ()
        assert lost_unnoticed(attempt, None) == ()


class TestCordonAfter:
    def test_failures_of_two_jobs_says_how_many_and_the_last(self):
        cordon = cordon_after(a_cluster(), "n1", failures("a", "b", "a"))
        assert (cordon.pool, cordon.machine, cordon.source) == ("spot", "n1", "failures")
        assert cordon.reason == "3 failures of 2 jobs within 24 h; the last: no 2"

    @pytest.mark.parametrize(
        ("pool", "kept"),
        [
            (a_cluster(), failures("a", "b")),
            (a_cluster(), failures("a", "a", "a", "a")),
            (a_cluster(cordon_after_failures=0), failures("a", "b", "c")),
            (a_cluster(cordoned=("n1",)), failures("a", "b", "c")),
            (a_cluster(nodes=3, cordoned=("n2", "n3")), failures("a", "b", "c")),
            (a_cluster(nodes=1), failures("a", "b", "c")),
            (a_pool(cordon_after_failures=3), failures("a", "b", "c")),
        ],
        ids=[
            "too few",
            "one job",
            "never",
            "cordoned",
            "half of them are",
            "the only one",
            "of this machine",
        ],
    )
    def test_does_not_come(self, pool, kept):
        assert cordon_after(pool, "n1", kept) is None

    def test_comes_after_as_many_as_the_pool_says_and_of_two_jobs_at_least(self):
        pool = a_cluster(cordon_after_failures=1)
        assert cordon_after(pool, "n1", failures("a")) is None
        assert cordon_after(pool, "n1", failures("a", "b")) is not None

    def test_comes_for_the_second_of_four(self):
        assert cordon_after(a_cluster(nodes=3, cordoned=("n2",)), "n1", failures("a", "b", "c")) is not None


class TestCordon:
    def test_of_a_cluster_leaves_one_node_fewer(self):
        pool = on_cordon(a_cluster(), "n1")
        assert (pool.nodes, pool.cordoned, list(pool.free)) == (3, ("n1",), [0, 1, 2])
        assert (pool.capacity.cordoned, pool.capacity.drained) == (("n1",), ())
        assert on_cordon(pool, "n1") == pool
        assert on_uncordon(pool, "n1") == a_cluster()
        assert on_cordon(a_cluster(nodes=1), "n1").nodes == 0

    def test_of_this_machine_takes_its_number(self):
        pool = on_cordon(a_pool(), "1")
        assert (pool.nodes, list(pool.free), pool.capacity.drained) == (3, [0, 2, 3], (1,))
        assert on_uncordon(pool, "1") == a_pool()

    def test_of_a_drained_machine_changes_no_count(self):
        drained = pools.on_drained(a_pool(), 1)
        cordoned = on_cordon(drained, "1")
        assert (cordoned.nodes, list(cordoned.free)) == (3, [0, 2, 3])
        assert on_uncordon(cordoned, "1") == drained

    def test_of_a_machine_in_use_takes_it_as_well(self):
        pool = on_cordon(a_pool(held=2), "1")
        assert (pool.nodes, dict(pool.free)) == (3, {0: 0, 2: 2, 3: 2})

    @pytest.mark.parametrize("machine", ["4", "n1", "01", "-1", "²"])
    def test_names_the_numbers_that_there_are(self, machine):
        with pytest.raises(Refused, match=f"has no machine {machine}; expected a number of: 0, 1, 2, 3"):
            on_cordon(a_pool(), machine)

    def test_what_is_not_cordoned_is_refused(self):
        with pytest.raises(Refused, match="machine n1 of pool spot is not cordoned; those that are: n2"):
            on_uncordon(a_cluster(cordoned=("n2",)), "n1")

    def test_holds_over_a_new_file(self):
        known = {"spot": on_cordon(a_cluster(), "n1")}
        [same] = pools.on_pools_read(known, {"spot": a_cluster()})
        assert (same.nodes, same.cordoned) == (3, ("n1",))
        [larger] = pools.on_pools_read(known, {"spot": a_cluster(nodes=9)})
        assert (larger.nodes, larger.cordoned) == (8, ("n1",))
        [smaller] = pools.on_pools_read(known, {"spot": a_cluster(nodes=1)})
        assert smaller.nodes == 0


class TestAvoided:
    def test_are_cordoned_machines_and_those_of_the_failed_attempt(self):
        pool = a_cluster(nodes=3, cordoned=("n9",))
        assert avoided(pool, failures("a"), nodes=2) == ("n1", "n9")
        assert avoided(pool, [], nodes=2) == ("n9",)

    def test_are_cordoned_ones_alone_where_the_pool_has_no_others(self):
        assert avoided(a_cluster(nodes=2, cordoned=("n9",)), failures("a"), nodes=2) == ("n9",)

    def test_of_another_pool_or_this_machine_are_none(self):
        elsewhere = [replace(each, pool="other") for each in failures("a")]
        assert avoided(a_cluster(), elsewhere, nodes=1) == ()
        assert avoided(a_pool(cordoned=("1",)), failures("a", machine="0"), nodes=1) == ()

    def test_reach_the_backend_with_the_attempt(self):
        decision = decide.on_job_scheduled(a_schedule(), a_cluster(), now=NOON, failures=failures("ftjob-1"))
        assert decision.actions == (Create(("n1",)),)

    def test_devices_that_failed_are_taken_last(self):
        failed = failures("ftjob-1", machine="0", devices=(0,))

        def devices(pool: Pool) -> tuple[int, ...]:
            schedule = a_schedule(nodes=1)
            return decide.on_job_scheduled(schedule, pool, now=NOON, failures=failed).attempt.nodes[0].devices

        assert devices(a_pool(nodes=1)) == (1,)
        assert devices(a_pool(nodes=1, leased={0: frozenset({1})})) == (0,)
        assert devices(a_cluster(nodes=1)) == (0,)


def a_lease() -> Lease:
    node = LeaseNode("r-1-e1", LeaseNodeState.RUNNING, host="n1")
    times = {"asked_at": NOON, "until": NOON + FAILURES_WITHIN}
    who = {"holder": "serving_controller", "purpose": "serving", "pool": "spot", "num_devices": 1}
    return Lease("lease-1", **who, **times, state=LeaseState.HELD, machine=0, devices=(3,), node=node)


def ended(**member: object) -> AttemptStatus:
    return AttemptStatus("r-1-e1", (Member(0, MemberState.ENDED, **member),))


LOST = ended(cause=Cause.NODE_LOST, host="n2", has_lost_machine=True)
KILLED = ended(cause=Cause.EXITED, exit_code=137)


def of_lease(status: AttemptStatus | None, **changes: object) -> Failure | None:
    return failure_of_lease(replace(a_lease(), **changes), status, "gone", now=NOON)


class TestFailureOfALease:
    def test_has_the_machine_and_what_ran_there(self):
        failure = of_lease(LOST)
        assert failure is not None
        assert failure.announced == LeaseFailure(
            machine="n2", lease_id="lease-1", holder="serving_controller", purpose="serving", node_id="r-1-e1-n0",
            devices=(3,), failed_at=NOON, counts_until=NOON + FAILURES_WITHIN, has_lost_machine=True, message="gone",
        )  # fmt: skip

    def test_is_of_the_machine_that_was_known_where_the_end_names_none(self):
        failure = of_lease(KILLED)
        assert failure is not None
        assert (failure.machine, failure.has_lost_machine) == ("n1", False)

    @pytest.mark.parametrize(
        "status",
        [
            None,
            AttemptStatus("r-1-e1", ()),
            AttemptStatus("r-1-e1", (Member(0, MemberState.RUNNING, host="n1"),)),
            ended(cause=Cause.PREEMPTED),
            ended(cause=Cause.CANCELLED),
            ended(cause=Cause.START_TIMEOUT),
            ended(cause=Cause.UNKNOWN),
            ended(cause=Cause.EXITED, exit_code=EXIT_FENCED),
            ended(cause=Cause.EXITED, exit_code=143),
        ],
        ids=[
            "unknown",
            "no node",
            "running",
            "preempted",
            "cancelled",
            "late",
            "forgotten",
            "fenced",
            "asked",
        ],
    )
    def test_is_none_of_an_end_that_is_not_the_machines(self, status):
        assert of_lease(status) is None

    def test_is_none_where_nobody_knows_the_machine(self):
        assert of_lease(KILLED, node=LeaseNode("r-1-e1")) is None
        assert of_lease(KILLED, node=None) is None

    def test_of_lost_machines_count_each_and_ends_of_a_program_as_one(self):
        lost, killed = of_lease(LOST), of_lease(KILLED)
        again = replace(killed, node_id="r-2-e1-n0", lease_id="lease-2")
        assert cordon_after(a_cluster(cordon_after_failures=2), "n1", [killed, again]) is None
        both = cordon_after(a_cluster(cordon_after_failures=2), "n1", [lost, again])
        assert both is not None
        assert both.reason.startswith("2 failures of 2 jobs and services within 24 h")
        assert cordon_after(a_cluster(cordon_after_failures=2), "n1", [killed, *failures("a")]) is not None

    def test_are_announced_apart_so_that_an_older_reader_reads_the_others(self):
        fact = capacity(a_cluster(), [*failures("a"), of_lease(KILLED)])
        assert [each.job_id for each in fact.failures] == ["a"]
        assert [each.lease_id for each in fact.lease_failures] == ["lease-1"]

    def test_is_avoided_by_the_next_node_while_it_counts(self):
        failure = of_lease(KILLED)
        assert is_recent(failure, NOON)
        assert not is_recent(failure, NOON + FAILURES_WITHIN)
        assert not is_recent(replace(failure, is_past=True), NOON)
        assert avoided(a_cluster(), [failure], nodes=1) == ("n1",)
        assert avoided(a_cluster(nodes=1), [failure], nodes=1) == ()
