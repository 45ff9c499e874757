"""The provisioner's decisions: each test is a row of the specification."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.base import CapacityType, DatasetRef, FailureClass, FileRef
from schemas.job import JobScheduled, JobStopping, StopReason
from schemas.node import (
    EXIT_FENCED,
    NodeLost,
    NodePreempted,
    NodesProvisioned,
    NodesQueued,
    NodesReleased,
    ProvisioningFailed,
)
from schemas.specification import JobSpec
from services.provisioner import decide
from services.provisioner.backends.protocol import AttemptStatus, Cause, Member, MemberState
from services.provisioner.decide import START_SLACK, Create, Decision, End, Notify, Release
from services.provisioner.model import Attempt, AttemptState, Pool
from shared.errors import Refused
from tests.moves import moves_of

NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
START_DEADLINE = NOON + 60 * SECOND
SHA = "a" * 64
WHO = {"job_id": "ftjob-1", "tenant": "acme", "attempt": 1}


def a_pool(*, nodes: int = 4, held: int = 0, **changes: object) -> Pool:
    """With two devices on each machine, of which the first `held` are held whole."""
    leased = {machine: frozenset({2 * machine, 2 * machine + 1}) for machine in range(held)}
    pool = Pool("spot", CapacityType.SPOT, nodes, 2, Decimal("0.10"), file_nodes=nodes, leased=leased)
    return replace(pool, **changes)


def a_schedule(*, nodes: int = 2, **changes: object) -> JobScheduled:
    fields = {
        **WHO,
        "spec": JobSpec(
            base_model="tiny", base_sha=SHA, training_file=FileRef(file_id="file-1", sha256=SHA, size_bytes=1)
        ),
        "base_sha": SHA,
        "dataset": DatasetRef(version=SHA, manifest_sha256=SHA),
        "config_hash": SHA,
        "resume": None,
        "pool": "spot",
        "capacity_type": CapacityType.SPOT,
        "nodes": nodes,
        "devices_per_node": 1,
        "grace_seconds": 30,
        "start_deadline": START_DEADLINE,
    }
    return JobScheduled(**fields | changes)


def creating(**changes: object) -> Attempt:
    attempt = decide.on_job_scheduled(a_schedule(), a_pool(), now=NOON).attempt
    return replace(attempt, **changes)


def running(**changes: object) -> Attempt:
    return replace(decide.on_created(creating(), has_nodes=True, now=NOON).attempt, **changes)


def stopping(*, seconds: float = 30) -> JobStopping:
    return JobStopping(**WHO, reason=StopReason.CANCEL, deadline=NOON + timedelta(seconds=seconds))


def stop(attempt: Attempt | None, *, seconds: float = 30, now: datetime = NOON) -> Decision:
    return decide.on_job_stopping(attempt, stopping(seconds=seconds), now=now)


def ended(index: int, code: int | None, **changes: object) -> Member:
    cause = Cause.NODE_LOST if code is None else Cause.EXITED
    return replace(Member(index, MemberState.ENDED, exit_code=code, cause=cause), **changes)


def shown(attempt: Attempt, *members: Member, now: datetime = NOON, **changes: str) -> Decision:
    return decide.on_status(attempt, AttemptStatus(attempt.name, members, **changes), now=now)


def exits(attempt: Attempt, codes: dict[int, int | None]) -> Decision:
    return shown(attempt, *(ended(index, code) for index, code in codes.items()))


def types(decision: Decision) -> list[type]:
    return [type(event) for event in decision.events]


class TestReservation:
    def test_takes_the_whole_gang_and_asks_the_engine(self):
        decision = decide.on_job_scheduled(a_schedule(nodes=3), a_pool(), now=NOON)
        assert decision.attempt.held == 3
        assert [node.node_id for node in decision.attempt.nodes] == [
            f"a-ftjob-1-e1-n{index}" for index in range(3)
        ]
        assert (decision.events, decision.actions) == ((), (Create(),))

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


class TestCreation:
    def test_is_reported_with_prices_and_times(self):
        decision = decide.on_created(creating(), has_nodes=True, now=NOON + SECOND)
        assert types(decision) == [NodesProvisioned]
        nodes = decision.events[0].nodes
        assert [node.allocated_at for node in nodes] == [NOON + SECOND] * 2
        assert {node.price_per_hour for node in nodes} == {Decimal("0.20")}
        assert decision.wake_at == START_DEADLINE + START_SLACK

    def test_of_a_stopped_attempt_is_not_wanted(self):
        assert decide.is_wanted(creating())
        assert not decide.is_wanted(stop(creating()).attempt)
        assert not decide.is_wanted(running())

    def test_that_a_stop_overtook_is_undone_at_once(self):
        decision = decide.on_created(stop(creating()).attempt, has_nodes=True, now=NOON)
        assert (decision.events, decision.actions) == ((), (Release(),))
        assert types(decide.on_released(decision.attempt, now=NOON)) == [NodesReleased]

    def test_that_failed_removes_what_is_left_before_it_is_reported(self):
        decision = decide.on_create_failed(creating(), "backend_failed", "no disk")
        assert (decision.events, decision.actions) == ((), (Release(),))
        assert decision.attempt.held == 2
        failed = decide.on_released(decision.attempt, now=NOON)
        assert types(failed) == [ProvisioningFailed]
        assert (failed.events[0].code, failed.events[0].message) == ("backend_failed", "no disk")
        assert failed.attempt.held == 0

    @pytest.mark.parametrize("attempt", [running(), stop(None).attempt], ids=["running", "releasing"])
    def test_that_comes_late_changes_nothing(self, attempt):
        assert decide.on_created(attempt, has_nodes=True, now=NOON) == Decision(attempt)
        assert decide.on_create_failed(attempt, "backend_failed", "") == Decision(attempt)


class TestStop:
    def test_keeps_the_nodes_until_its_deadline(self):
        decision = stop(running())
        assert (decision.events, decision.actions) == ((), ())
        assert decision.wake_at == NOON + 30 * SECOND
        attempt = decision.attempt
        assert decide.on_due(attempt, now=NOON + 29 * SECOND).actions == ()
        assert decide.on_due(attempt, now=NOON + 30 * SECOND).actions == (Release(),)

    def test_deadline_only_moves_earlier(self):
        attempt = stop(stop(running(), seconds=5).attempt, seconds=30).attempt
        assert attempt.stop_deadline == NOON + 5 * SECOND

    def test_in_the_past_releases_at_once(self):
        assert stop(running(), seconds=-1).actions == (Release(),)

    def test_of_an_unknown_attempt_asks_the_engine_and_answers(self):
        decision = stop(None)
        assert decision.actions == (Release(),)
        released = decide.on_released(decision.attempt, now=NOON)
        assert types(released) == [NodesReleased]
        assert released.events[0].nodes == ()

    def test_of_an_attempt_that_was_refused_asks_the_engine_and_answers(self):
        refused = decide.on_job_scheduled(a_schedule(), a_pool(nodes=0), now=NOON).attempt
        decision = stop(refused)
        assert decision.actions == (Release(),)
        assert types(decide.on_released(decision.attempt, now=NOON)) == [NodesReleased]

    def test_while_a_failed_creation_is_removed_is_answered_instead(self):
        failing = decide.on_create_failed(creating(), "backend_failed", "").attempt
        decision = stop(failing)
        assert decision.actions == ()
        released = decide.on_released(decision.attempt, now=NOON)
        assert types(released) == [NodesReleased]
        assert released.events[0].nodes == ()

    @pytest.mark.parametrize("order", list(permutations(["stop", "created", "released"])))
    def test_releases_exactly_once_in_every_order(self, order):
        steps = {
            "stop": lambda a: stop(a, seconds=0),
            "created": lambda a: decide.on_created(a, has_nodes=True, now=NOON),
            "released": lambda a: decide.on_released(a, now=NOON),
        }
        attempt, sent = creating(), []
        for name in [*order, "created", "stop", "released", "released", "stop"]:
            decision = steps[name](attempt)
            attempt = decision.attempt
            sent += types(decision)
        assert sent.count(NodesReleased) == 1
        assert (attempt.state, attempt.held) == (AttemptState.RELEASED, 0)


class TestRelease:
    def test_when_all_runners_have_exited(self):
        first = exits(running(), {0: 0})
        assert first.actions == ()
        assert exits(first.attempt, {0: 0, 1: 143}).actions == (Release(),)

    def test_at_job_evaluating_with_time_for_the_log(self):
        decision = decide.on_attempt_completed(running())
        assert decision.actions == (Release(grace_seconds=decide.FINISH_GRACE_SECONDS),)
        assert decide.on_attempt_completed(decision.attempt).actions == ()

    def test_tells_from_when_to_when(self):
        released = decide.on_released(decide.on_attempt_completed(running()).attempt, now=NOON + SECOND)
        node = released.events[0].nodes[0]
        assert (node.allocated_at, node.released_at) == (NOON, NOON + SECOND)
        assert released.attempt.held == 0

    def test_when_training_has_not_started_in_time(self):
        late = START_DEADLINE + START_SLACK
        assert decide.on_due(running(), now=late - SECOND).actions == ()
        assert decide.on_due(running(), now=late).actions == (Release(),)
        started = decide.on_training_started(running()).attempt
        assert decide.on_due(started, now=late).actions == ()


class TestLoss:
    @pytest.mark.parametrize(
        ("code", "lost"), [(0, False), (143, False), (1, True), (137, True), (None, True)]
    )
    def test_is_any_exit_but_0_and_143(self, code, lost):
        decision = exits(running(), {1: code})
        assert types(decision) == ([NodeLost] if lost else [])
        assert decision.attempt.nodes[1].has_ended

    def test_is_reported_once(self):
        attempt = exits(running(), {1: 137}).attempt
        assert exits(attempt, {1: 137}) == Decision(attempt)

    def test_names_the_node_and_what_was_found(self):
        lost = exits(running(), {1: 137}).events[0]
        assert lost.node_id == "a-ftjob-1-e1-n1"
        assert lost.message == "the runner of node a-ftjob-1-e1-n1 exited with code 137, expected 0 or 143"
        assert lost.failure_class is FailureClass.INFRA

    def test_is_no_fault_of_the_node_where_its_runner_heard_nothing_of_kafka(self):
        lost = exits(running(), {1: EXIT_FENCED}).events[0]
        assert lost.failure_class is FailureClass.PLATFORM

    def test_of_a_node_that_was_noticed_is_no_news(self):
        noticed = preempt(running()).attempt
        assert exits(noticed, {0: None}).events == ()

    def test_is_not_what_we_did_ourselves(self):
        releasing = decide.on_attempt_completed(running()).attempt
        assert exits(releasing, {0: None}) == Decision(releasing)


def queued(**changes: object) -> Attempt:
    decision = decide.on_created(creating(), has_nodes=True, is_queued=True, waiting_for="Priority", now=NOON)
    return replace(decision.attempt, **changes)


def members(state: MemberState, **changes: object) -> list[Member]:
    return [replace(Member(index, state), **changes) for index in range(2)]


class TestQueue:
    """An attempt that waits in the backend's own queue."""

    def test_is_announced_with_what_it_waits_for_and_has_no_deadline(self):
        decision = decide.on_created(
            creating(), has_nodes=True, is_queued=True, waiting_for="Priority", now=NOON
        )
        assert types(decision) == [NodesQueued]
        assert decision.events[0].waiting_for == "Priority"
        assert (decision.attempt.state, decision.attempt.held) == (AttemptState.QUEUED, 2)
        assert decision.wake_at is None
        assert decide.on_due(decision.attempt, now=START_DEADLINE + 60 * SECOND).actions == ()

    def test_is_left_when_it_runs_and_costs_and_is_awaited_from_then_on(self):
        later = NOON + 1000 * SECOND
        assert shown(queued(), *members(MemberState.QUEUED), now=later) == Decision(queued())
        decision = shown(queued(), *members(MemberState.RUNNING, host="n3"), now=later)
        assert types(decision) == [NodesProvisioned]
        event = decision.events[0]
        assert event.start_deadline == START_DEADLINE + 1000 * SECOND
        assert [node.allocated_at for node in event.nodes] == [later] * 2
        assert decision.wake_at == event.start_deadline + START_SLACK
        assert [node.host for node in decision.attempt.nodes] == ["n3", "n3"]

    def test_that_it_left_and_ended_meanwhile_is_both_told(self):
        decision = shown(queued(), ended(0, 143, host="n1"), ended(1, 7, host="n2"))
        assert types(decision) == [NodesProvisioned, NodeLost]
        assert (decision.attempt.state, decision.actions) == (AttemptState.RELEASING, (Release(),))

    def test_without_hope_is_no_capacity(self):
        decision = shown(queued(), *members(MemberState.QUEUED), refusal="PartitionNodeLimit")
        assert (decision.events, decision.actions) == ((), (Release(),))
        failed = decide.on_released(decision.attempt, now=NOON)
        assert types(failed) == [ProvisioningFailed]
        assert (failed.events[0].code, failed.events[0].message) == ("no_capacity", "PartitionNodeLimit")

    def test_that_somebody_ended_is_a_failure(self):
        decision = shown(queued(), *members(MemberState.ENDED, cause=Cause.CANCELLED))
        failed = decide.on_released(decision.attempt, now=NOON)
        assert failed.events[0].code == "backend_failed"
        assert "cancelled" in failed.events[0].message

    def test_is_left_at_once_on_a_stop_and_costs_nothing(self):
        decision = stop(queued())
        assert decision.actions == (Release(),)
        released = decide.on_released(decision.attempt, now=NOON)
        assert types(released) == [NodesReleased]
        assert released.events[0].nodes == ()

    def test_that_a_stop_overtook_is_left_and_costs_nothing(self):
        decision = decide.on_created(stop(creating()).attempt, has_nodes=True, is_queued=True, now=NOON)
        assert decide.on_released(decision.attempt, now=NOON).events[0].nodes == ()


class TestNoticesOfTheBackend:
    def notice(self, *, seconds: float = 30) -> Member:
        deadline = NOON + timedelta(seconds=seconds)
        return Member(0, MemberState.RUNNING, notice_deadline=deadline, notice_source="preemption")

    def test_tell_everyone_and_the_runner(self):
        decision = shown(running(), self.notice())
        assert types(decision) == [NodePreempted]
        assert (decision.events[0].node_id, decision.events[0].source) == ("a-ftjob-1-e1-n0", "preemption")
        assert decision.actions == (Notify(0, NOON + 30 * SECOND),)
        assert decision.wake_at == NOON + 30 * SECOND

    def test_are_told_once_unless_they_come_nearer(self):
        noticed = shown(running(), self.notice()).attempt
        assert shown(noticed, self.notice()) == Decision(noticed)
        assert shown(noticed, self.notice(seconds=60)) == Decision(noticed)
        assert shown(noticed, self.notice(seconds=5)).events[0].deadline == NOON + 5 * SECOND

    def test_are_not_what_the_platform_itself_has_given(self):
        deadline = NOON + 30 * SECOND
        own = Member(0, MemberState.RUNNING, notice_deadline=deadline)
        assert shown(running(), own) == Decision(running())

    def test_that_came_too_late_make_no_loss(self):
        decision = shown(running(), ended(0, None, cause=Cause.PREEMPTED))
        assert types(decision) == [NodePreempted]
        assert decision.events[0].deadline == NOON

    def test_of_a_runner_that_has_exited_already_are_no_news(self):
        gone = exits(running(), {0: 143}).attempt
        assert shown(gone, self.notice()) == Decision(gone)


class TestCauses:
    def test_of_others_that_went_with_a_lost_machine_blame_nobody(self):
        decision = shown(running(), ended(0, None, host="n1"), ended(1, None, cause=Cause.CANCELLED))
        assert [event.node_id for event in decision.events] == ["a-ftjob-1-e1-n0"]
        assert decision.events[0].host == "n1"
        assert decision.attempt.state is AttemptState.RELEASING

    def test_by_somebody_at_the_backend_are_losses_that_say_so(self):
        decision = shown(running(), ended(0, None, cause=Cause.CANCELLED))
        assert "was cancelled at the cluster backend" in decision.events[0].message

    def test_that_are_unknown_end_nothing(self):
        decision = shown(running(), *members(MemberState.ENDED, cause=Cause.UNKNOWN))
        assert decision == Decision(running())


def preempt(
    attempt: Attempt | None, target: str = "a-ftjob-1-e1-n0", *, seconds: float = 30, source: str = "operator"
) -> Decision:
    return decide.on_preempt(attempt, target, notice_seconds=seconds, source=source, now=NOON)


class TestPreemption:
    def test_with_notice_tells_everyone_and_ends_the_node_at_the_deadline(self):
        deadline = NOON + 30 * SECOND
        decision = preempt(running(), source="drain")
        assert types(decision) == [NodePreempted]
        assert (decision.events[0].deadline, decision.events[0].source) == (deadline, "drain")
        assert decision.actions == (Notify(0, deadline),)
        assert decision.wake_at == deadline
        assert decide.on_due(decision.attempt, now=deadline - SECOND).actions == ()
        assert decide.on_due(decision.attempt, now=deadline).actions == (End(0),)

    def test_without_notice_ends_the_node_and_says_nothing(self):
        decision = preempt(running(), seconds=0)
        assert (decision.events, decision.actions) == ((), (End(0),))
        assert types(exits(decision.attempt, {0: None})) == [NodeLost]

    def test_of_a_job_takes_the_first_node_that_is_left(self):
        attempt = exits(running(), {0: 0}).attempt
        assert preempt(attempt, "job:ftjob-1").events[0].node_id == "a-ftjob-1-e1-n1"

    def test_again_counts_only_if_it_is_earlier(self):
        noticed = preempt(running()).attempt
        assert preempt(noticed, seconds=60) == Decision(noticed)
        assert preempt(noticed, seconds=5).events[0].deadline == NOON + 5 * SECOND

    @pytest.mark.parametrize(
        ("attempt", "code"),
        [
            (None, "unknown_node"),
            (creating(), "not_running"),
            (exits(running(), {0: 0}).attempt, "not_running"),
            (decide.on_attempt_completed(running()).attempt, "not_running"),
        ],
        ids=["unknown", "creating", "ended", "releasing"],
    )
    def test_is_refused_where_there_is_nothing_to_take(self, attempt, code):
        with pytest.raises(Refused) as refused:
            preempt(attempt)
        assert refused.value.code == code

    @pytest.mark.parametrize(
        ("pool", "machine", "nodes", "machines"),
        [
            (a_pool(nodes=2), 0, 1, {1}),
            (a_pool(nodes=2), 1, 1, {0}),
            (a_pool(nodes=1, drained=(0,)), 0, 1, {1}),
            (a_pool(nodes=1, leased={3: frozenset({6})}), 3, 0, set()),
            (a_pool(nodes=0, leased={3: frozenset({6})}), 3, 0, set()),
        ],
        ids=["first", "last", "again", "made smaller", "made empty"],
    )
    def test_a_drained_machine_is_the_one_that_takes_no_work(self, pool, machine, nodes, machines):
        drained = decide.on_drained(pool, machine)
        assert (drained.nodes, drained.free.keys()) == (nodes, machines)

    def test_a_drain_gives_notice_to_all_nodes_of_the_machine(self):
        target, same = running(), running(job_id="ftjob-2")
        ended = exits(running(job_id="ftjob-3"), {0: 0}).attempt
        coming = replace(creating(), job_id="ftjob-4")
        elsewhere = running(job_id="ftjob-5")
        elsewhere = replace(
            elsewhere, nodes=tuple(replace(node, machine=node.machine + 2) for node in elsewhere.nodes)
        )
        machine, noticed = decide.on_drain(
            target, [same, ended, coming, elsewhere], "a-ftjob-1-e1-n1", grace_seconds=20, now=NOON
        )
        assert machine == 1
        assert [(before.job_id, decision.events[0].node_id) for before, decision in noticed] == [
            (job_id, "a-ftjob-1-e1-n1") for job_id in ("ftjob-1", "ftjob-2", "ftjob-3")
        ]
        assert {decision.events[0].source for _, decision in noticed} == {"drain"}


class TestPools:
    def test_a_new_pool_is_as_the_file_says(self):
        assert decide.on_pools_read({}, {"spot": a_pool()}) == [a_pool()]

    def test_an_operators_capacity_holds_until_the_file_says_something_new(self):
        known = {"spot": a_pool(nodes=4, held=1, drained=(2,), file_nodes=2)}
        kept = decide.on_pools_read(known, {"spot": a_pool(nodes=2)})[0]
        assert (kept.nodes, kept.free) == (4, {0: 0, 1: 2, 3: 2, 4: 2})
        changed = decide.on_pools_read(known, {"spot": a_pool(nodes=3)})[0]
        assert (changed.nodes, changed.free) == (3, {0: 0, 1: 2, 2: 2})

    def test_prices_follow_the_file(self):
        dearer = a_pool(price_per_device_hour=Decimal(9))
        assert decide.on_pools_read({"spot": a_pool()}, {"spot": dearer})[0].price_per_device_hour == 9

    def test_a_pool_that_left_the_file_gives_no_more_nodes(self):
        gone = decide.on_pools_read({"spot": a_pool(held=1)}, {})[0].capacity
        assert (gone.nodes, gone.free, gone.free_devices, gone.is_removed) == (0, 0, 0, True)
        back = decide.on_pools_read({"spot": replace(a_pool(), is_removed=True)}, {"spot": a_pool()})[0]
        assert not back.is_removed

    def test_free_is_never_negative(self):
        capacity = a_pool(nodes=1, held=3).capacity
        assert (capacity.free, capacity.free_devices) == (0, 0)

    def test_of_a_machine_that_is_shared_the_devices_are_free_and_the_node_is_not(self):
        capacity = a_pool(nodes=3, leased={1: frozenset({2})}).capacity
        assert (capacity.free, capacity.free_devices, capacity.price_per_hour) == (2, 5, Decimal("0.20"))


def test_orphans_are_of_no_attempt_or_of_one_that_is_gone():
    listed = {state.value: state for state in AttemptState} | {"unknown": None}
    assert decide.orphans(listed) == ["refused", "released", "unknown"]


def test_an_attempt_moves_so_and_no_other_way():
    assert moves_of(AttemptState, lambda state: creating(state=state), field="state") == {
        "creating": {"queued", "running", "failing", "releasing"},
        "queued": {"running", "failing", "releasing"},
        "running": {"releasing"},
        "failing": {"refused", "releasing"},
        "releasing": {"released"},
        "refused": {"releasing"},
        "released": set(),
    }
