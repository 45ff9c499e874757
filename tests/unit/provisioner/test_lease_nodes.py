"""Leases in pools of other backends: each has a node, and its devices until the backend has nothing left of it."""

from dataclasses import replace
from datetime import timedelta

import pytest

from schemas.node import DeviceLeaseEnded, DeviceLeaseQueued, DevicesLeased, LeasedNode, LeaseEnd
from services.provisioner import lease_nodes, leases
from services.provisioner.backends.protocol import AttemptStatus, Cause, Member, MemberState
from services.provisioner.model import Lease, LeaseNode, LeaseNodeState, LeaseState
from tests.unit.provisioner.attempts import NOON, SECOND, a_pool
from tests.unit.provisioner.test_leases import UNTIL, asked, waiting

POOL = a_pool(backend="slurm")
KEY = "f" * 64
SERVING = {"purpose": "serving"}


def served() -> Lease:
    [lease] = leases.serve(replace(POOL, leases=(waiting(**SERVING),))).changed
    return lease


def named(lease: Lease) -> LeaseNode:
    assert lease.node is not None
    return lease.node


def shown(state: MemberState, *, waiting_for="", refusal="", has_keys=True, **member) -> AttemptStatus:
    members = (Member(0, state, **member),)
    return AttemptStatus(named(served()).name, members, waiting_for, refusal, has_keys=has_keys)


STARTING, RUNNING = shown(MemberState.STARTING), shown(MemberState.RUNNING, host="n1")
QUEUED = shown(MemberState.QUEUED, waiting_for="Resources")


def started(status: AttemptStatus | None = STARTING) -> lease_nodes.Followed:
    return lease_nodes.on_started(served(), POOL, status, public_key=KEY)


def seen(lease: Lease, status: AttemptStatus) -> lease_nodes.Followed:
    return lease_nodes.on_status(lease, POOL, status)


class TestServing:
    def test_gives_a_node_to_be_started_and_says_nothing_yet(self):
        result = leases.serve(replace(POOL, leases=(waiting(**SERVING),)))
        [lease] = result.changed
        assert (lease.state, lease.devices, named(lease).state) == (LeaseState.HELD, (0,), "starting")
        assert result.events == ()

    def test_names_nodes_alike_for_the_same_lease_and_apart_for_others(self):
        first, again, other = (
            leases.serve(replace(POOL, leases=(waiting(name, **SERVING),))).changed[0]
            for name in ("lease-1", "lease-1", "lease-2")
        )
        assert named(first).name == named(again).name != named(other).name

    def test_asks_for_nothing_again_while_the_node_starts(self):
        later = asked(until=UNTIL + SECOND, **SERVING)
        lease, events = leases.on_asked(later, POOL, served(), now=NOON)
        assert (lease.until, events) == (UNTIL + SECOND, ())


class TestAddress:
    def test_is_announced_once_the_backend_has_it(self):
        running = started(shown(MemberState.RUNNING, host="n1")).lease
        followed = seen(running, shown(MemberState.RUNNING, host="n1", address="10.0.0.7"))
        [fact] = followed.events
        assert fact.node.address == "10.0.0.7"
        again = seen(followed.lease, shown(MemberState.RUNNING, host="n1"))
        assert (again.events, named(again.lease).address) == ((), "10.0.0.7")


class TestMachine:
    def test_is_announced_once_the_backend_names_it(self):
        running = started(shown(MemberState.RUNNING, address="10.0.0.7")).lease
        addressed = seen(running, shown(MemberState.RUNNING, address="10.0.0.7")).lease
        followed = seen(addressed, shown(MemberState.RUNNING, host="n1", address="10.0.0.7"))
        [fact] = followed.events
        assert (fact.node.host, fact.node.address) == ("n1", "10.0.0.7")
        assert seen(followed.lease, shown(MemberState.RUNNING, host="n1")).events == ()


class TestStart:
    def test_announces_the_node_with_its_key(self):
        followed = started()
        [fact] = followed.events
        node = LeasedNode(node_id=f"{named(served()).name}-n0", public_key=KEY)
        assert (type(fact), fact.node, fact.until) == (DevicesLeased, node, UNTIL)
        assert followed.lease.is_at_work

    def test_names_no_key_that_the_node_was_not_given(self):
        assert started(shown(MemberState.STARTING, has_keys=False)).events[0].node.public_key is None

    def test_in_the_backends_queue_has_the_backends_words(self):
        followed = started(QUEUED)
        [fact] = followed.events
        assert (type(fact), fact.waiting_for) == (DeviceLeaseQueued, "Resources")
        assert not followed.lease.is_at_work

    def test_in_the_backends_queue_has_its_words_once_there_are_any_and_as_they_change(self):
        silent = started(shown(MemberState.QUEUED)).lease
        first = lease_nodes.on_status(silent, POOL, QUEUED)
        assert [fact.waiting_for for fact in first.events] == ["Resources"]
        assert not first.lease.is_at_work
        later = lease_nodes.on_status(first.lease, POOL, shown(MemberState.QUEUED, waiting_for="Priority"))
        assert [fact.waiting_for for fact in later.events] == ["Priority"]
        again = lease_nodes.on_status(later.lease, POOL, shown(MemberState.QUEUED, waiting_for="Priority"))
        assert (again.lease, again.events) == (later.lease, ())

    def test_of_which_the_backend_knows_nothing_ends_the_lease(self):
        [fact] = started(None).events
        assert (type(fact), fact.reason) == (DeviceLeaseEnded, LeaseEnd.NODE_ENDED)
        assert "does not know r-" in fact.message

    def test_that_fails_ends_the_lease_with_what_was_said_and_keeps_its_devices(self):
        followed = lease_nodes.on_failed(served(), "sbatch: no such partition")
        [fact] = followed.events
        assert (fact.reason, fact.message) == (LeaseEnd.NODE_ENDED, "sbatch: no such partition")
        assert (followed.lease.state, followed.lease.devices) == (LeaseState.HELD, (0,))
        assert named(followed.lease).state is LeaseNodeState.ENDING

    def test_after_the_lease_is_over_changes_nothing(self):
        over = leases.on_end(served(), LeaseEnd.RETURNED)
        assert not lease_nodes.is_wanted(over)
        for followed in (
            lease_nodes.on_started(over, POOL, STARTING, public_key=KEY),
            lease_nodes.on_failed(over, "stopped"),
        ):
            assert (followed.lease, followed.events) == (over, ())


class TestWatch:
    def test_announces_a_node_that_leaves_the_queue(self):
        followed = seen(started(QUEUED).lease, RUNNING)
        [fact] = followed.events
        assert (type(fact), fact.node.host) == (DevicesLeased, "n1")
        assert seen(followed.lease, RUNNING).events == ()

    def test_ends_the_lease_that_the_backend_will_never_serve(self):
        [fact] = seen(started(QUEUED).lease, shown(MemberState.QUEUED, refusal="BadConstraints")).events
        assert (fact.reason, fact.message) == (LeaseEnd.NODE_ENDED, "BadConstraints")

    def test_passes_the_backends_notice_on_once_unless_it_comes_nearer(self):
        lease = started().lease
        for seconds, expected in ((60, 60), (90, None), (30, 30)):
            deadline = NOON + timedelta(seconds=seconds)
            status = shown(MemberState.RUNNING, notice_deadline=deadline, notice_source="drain", host="n1")
            followed = seen(lease, status)
            announced = [fact.node.notice_deadline for fact in followed.events]
            assert announced == ([] if expected is None else [NOON + timedelta(seconds=expected)])
            lease = followed.lease
        assert named(lease).notice_source == "drain"

    @pytest.mark.parametrize(
        ("member", "words"),
        [
            ({"cause": Cause.PREEMPTED}, "was preempted by the cluster backend"),
            ({"cause": Cause.NODE_LOST}, "was lost"),
            ({"cause": Cause.EXITED, "exit_code": 70}, "exited with code 70"),
        ],
        ids=["preempted", "lost", "exited"],
    )
    def test_ends_the_lease_whose_node_has_ended_and_says_how(self, member, words):
        [fact] = seen(started().lease, shown(MemberState.ENDED, host="n1", **member)).events
        assert (type(fact), fact.reason) == (DeviceLeaseEnded, LeaseEnd.NODE_ENDED)
        assert fact.message.endswith(f"-e1-n0 on n1 {words}")

    def test_concludes_nothing_from_what_the_backend_does_not_know(self):
        lease = started().lease
        unknown = shown(MemberState.ENDED, cause=Cause.UNKNOWN)
        assert seen(lease, unknown).lease == lease
        assert seen(lease, AttemptStatus(named(lease).name, ())).lease == lease


class TestEnd:
    def test_keeps_the_devices_until_nothing_is_left_of_the_node(self):
        over = leases.on_end(started().lease, LeaseEnd.RETURNED)
        pool = replace(POOL, leases=(over,), leased={0: frozenset({0})})
        assert not over.is_at_work
        assert leases.on_asked(asked(**SERVING), pool, over, now=NOON) == (over, (leases.ended(over),))
        released = leases.on_released(over)
        assert (released.state, released.devices, released.end) == ("ended", (), LeaseEnd.RETURNED)

    def test_of_a_pool_that_was_removed_is_the_end_of_the_node_once(self):
        removed = replace(POOL, is_removed=True, leases=(started().lease, waiting("other", **SERVING)))
        first = leases.serve(removed)
        assert [fact.reason for fact in first.events] == [LeaseEnd.POOL_REMOVED] * 2
        assert [lease.state for lease in first.changed] == [LeaseState.HELD, LeaseState.ENDED]
        assert leases.serve(first.pool).changed == ()
