"""The provisioner's decisions: each test is a row of the specification."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from itertools import permutations

import pytest

from schemas.base import FailureClass
from schemas.node import (
    EXIT_FENCED,
    NodeLost,
    NodePreempted,
    NodesProvisioned,
    NodesQueued,
    NodesReleased,
    ProvisioningFailed,
)
from services.provisioner import decide, pools
from services.provisioner.backends.protocol import Cause, Member, MemberState
from services.provisioner.decide import START_SLACK, Decision, End, Notify, Release
from services.provisioner.model import Attempt, AttemptState
from shared.errors import Refused
from tests.moves import moves_of
from tests.unit.provisioner.attempts import (
    NOON,
    SECOND,
    START_DEADLINE,
    a_pool,
    a_schedule,
    creating,
    ended,
    exits,
    running,
    shown,
    stop,
    types,
)


class TestCreation:
    def test_is_reported_with_prices_and_times(self):
        decision = decide.on_created(creating(), has_nodes=True, now=NOON + SECOND)
        assert types(decision) == [NodesProvisioned]
        nodes = decision.events[0].nodes
        assert [node.allocated_at for node in nodes] == [NOON + SECOND] * 2
        assert [node.allocated for node in decision.attempt.nodes] == [*nodes]
        assert {node.price_per_hour for node in nodes} == {Decimal("0.20")}
        assert decision.events[0].start_deadline is None, "that of the schedule holds"
        assert decision.wake_at == START_DEADLINE + START_SLACK

    def test_of_a_stopped_attempt_is_not_wanted(self):
        assert decide.is_wanted(creating())
        assert not decide.is_wanted(stop(creating()).attempt)
        assert not decide.is_wanted(running())

    def test_that_a_stop_overtook_is_undone_at_once(self):
        decision = decide.on_created(stop(creating()).attempt, has_nodes=True, now=NOON + SECOND)
        assert (decision.events, decision.actions) == ((), (Release(),))
        (released,) = decide.on_released(decision.attempt, now=NOON).events
        assert type(released) is NodesReleased
        assert [node.allocated_at for node in released.nodes] == [NOON + SECOND] * 2

    def test_that_failed_removes_what_is_left_before_it_is_reported(self):
        decision = decide.on_create_failed(creating(), "backend_failed", "no disk")
        assert (decision.events, decision.actions) == ((), (Release(),))
        assert decision.attempt.held == 2
        failed = decide.on_released(decision.attempt, now=NOON)
        assert types(failed) == [ProvisioningFailed]
        assert (failed.events[0].code, failed.events[0].message) == ("backend_failed", "no disk")
        assert failed.attempt.held == 0

    def test_that_failed_after_a_stop_is_the_end_of_the_stop(self):
        decision = decide.on_create_failed(stop(creating()).attempt, "backend_failed", "no disk")
        assert decision.attempt.state is AttemptState.RELEASING
        assert types(decide.on_released(decision.attempt, now=NOON)) == [NodesReleased]

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
        assert decide.on_due(attempt, now=NOON + 29 * SECOND) == decide.Decision(attempt)
        assert decide.on_due(attempt, now=NOON + 30 * SECOND).actions == (Release(),)

    def test_deadline_only_moves_earlier(self):
        attempt = stop(stop(running(), seconds=5).attempt, seconds=30).attempt
        assert attempt.stop_deadline == NOON + 5 * SECOND

    def test_in_the_past_releases_at_once(self):
        assert stop(running(), seconds=-1).actions == (Release(),)

    def test_of_an_unknown_attempt_asks_the_engine_and_answers(self):
        decision = stop(None)
        assert decision.actions == (Release(),)
        assert decision.attempt.stop_deadline == NOON + 30 * SECOND
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
        assert decide.on_attempt_completed(decision.attempt) == decide.Decision(decision.attempt)

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
        assert (decision.attempt.nodes[1].has_ended, decision.attempt.nodes[1].exit_code) == (True, code)

    def test_is_reported_once(self):
        attempt = exits(running(), {1: 137}).attempt
        assert exits(attempt, {1: 137}) == Decision(attempt)

    def test_names_the_node_and_what_was_found(self):
        lost = exits(running(), {1: 137}).events[0]
        assert lost.node_id == "a-ftjob-1-e1-n1"
        assert lost.message == "the runner of node a-ftjob-1-e1-n1 exited with code 137, expected 0 or 143"
        assert lost.failure_class is FailureClass.INFRA

    def test_of_a_node_that_left_no_exit_code_says_that_it_vanished(self):
        lost = exits(running(), {1: None}).events[0]
        assert lost.message == "the runner of node a-ftjob-1-e1-n1 vanished, expected 0 or 143"

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


class TestKeys:
    """The public key of each node is announced with it, where it was given the private one."""

    KEYS = ("0" * 64, "1" * 64)

    def test_are_announced_when_the_nodes_are_there(self):
        decision = decide.on_created(creating(), has_nodes=True, public_keys=self.KEYS, now=NOON)
        [event] = decision.events
        assert tuple(node.public_key for node in event.nodes) == self.KEYS
        assert tuple(node.public_key for node in decision.attempt.nodes) == self.KEYS

    def test_are_announced_when_the_queue_is_left(self):
        waiting = decide.on_created(
            creating(), has_nodes=True, is_queued=True, public_keys=self.KEYS, now=NOON
        ).attempt
        [event, *_] = shown(waiting, *members(MemberState.RUNNING, host="n3")).events
        assert tuple(node.public_key for node in event.nodes) == self.KEYS

    def test_are_told_of_nodes_that_go_too(self):
        attempt = decide.on_created(creating(), has_nodes=True, public_keys=self.KEYS, now=NOON).attempt
        released = decide.on_released(decide.on_attempt_completed(attempt).attempt, now=NOON)
        assert tuple(node.public_key for node in released.events[0].nodes) == self.KEYS

    def test_of_nodes_that_were_given_none_there_are_none(self):
        [event] = decide.on_created(creating(), has_nodes=True, now=NOON).events
        assert [node.public_key for node in event.nodes] == [None, None]


class TestAddresses:
    """Where the nodes are is announced as their backend has it, for all of them or none."""

    def test_are_announced_when_the_nodes_are_there(self):
        decision = decide.on_created(creating(), has_nodes=True, addresses=("h0", "h1"), now=NOON)
        assert [node.address for node in decision.events[0].nodes] == ["h0", "h1"]

    def test_are_announced_when_the_queue_is_left(self):
        located = [
            replace(each, address=f"h{each.index}") for each in members(MemberState.RUNNING, host="n3")
        ]
        assert [node.address for node in shown(queued(), *located).events[0].nodes] == ["h0", "h1"]

    def test_of_some_nodes_are_those_of_none(self):
        some = [replace(each, address="h" * each.index) for each in members(MemberState.RUNNING, host="n3")]
        assert [node.address for node in shown(queued(), *some).events[0].nodes] == [None, None]


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
        unknown = decide.on_created(creating(), has_nodes=True, is_queued=True, now=NOON)
        assert unknown.events[0].waiting_for == ""
        later = START_DEADLINE + 60 * SECOND
        assert decide.on_due(decision.attempt, now=later) == decide.Decision(decision.attempt)

    def test_is_announced_again_once_the_backend_says_what_it_waits_for(self):
        silent = decide.on_created(creating(), has_nodes=True, is_queued=True, now=NOON).attempt
        waiting = members(MemberState.QUEUED)
        assert shown(silent, *waiting) == Decision(silent)
        first = shown(silent, *waiting, waiting_for="Priority")
        assert [event.waiting_for for event in first.events] == ["Priority"]
        assert first.attempt.state is AttemptState.QUEUED

    def test_is_announced_again_when_the_backend_gives_another_reason_and_not_another_number(self):
        waiting = members(MemberState.QUEUED)
        first = shown(queued(), *waiting, waiting_for="0/3 nodes are free").attempt
        for same in ("0/3 nodes are free", "1/12 nodes are free", ""):
            assert shown(first, *waiting, waiting_for=same) == Decision(first)
        other = shown(first, *waiting, waiting_for="0/3 nodes are free: 3 have a taint")
        assert [event.waiting_for for event in other.events] == ["0/3 nodes are free: 3 have a taint"]
        back = shown(other.attempt, *waiting, waiting_for="0/4 nodes are free")
        assert [event.waiting_for for event in back.events] == ["0/4 nodes are free"]

    def test_is_left_when_it_runs_and_costs_and_is_awaited_from_then_on(self):
        later = NOON + 1000 * SECOND
        assert shown(queued(), *members(MemberState.QUEUED), now=later) == Decision(queued())
        decision = shown(queued(), *members(MemberState.RUNNING, host="n3"), now=later)
        assert types(decision) == [NodesProvisioned]
        event = decision.events[0]
        assert event.start_deadline == START_DEADLINE + 1000 * SECOND
        assert [node.allocated_at for node in event.nodes] == [later] * 2
        assert decision.attempt.start_deadline == event.start_deadline
        assert decision.wake_at == event.start_deadline + START_SLACK
        submitted = decide.on_created(
            creating(), has_nodes=True, is_queued=True, now=NOON + 20 * SECOND
        ).attempt
        slow = shown(submitted, *members(MemberState.RUNNING), now=later)
        assert slow.events[0].start_deadline == event.start_deadline
        assert [node.host for node in decision.attempt.nodes] == ["n3", "n3"]

    def test_that_it_left_and_ended_meanwhile_is_both_told(self):
        decision = shown(queued(), ended(0, 143, host="n1"), ended(1, 7, host="n2"))
        assert types(decision) == [NodesProvisioned, NodeLost]
        assert (decision.attempt.state, decision.actions) == (AttemptState.RELEASING, (Release(),))

    def test_that_a_node_was_preempted_meanwhile_is_announced_with_the_time(self):
        gone = ended(0, None, cause=Cause.PREEMPTED, host="n1")
        decision = shown(queued(), gone, Member(1, MemberState.RUNNING, host="n2"), now=NOON + SECOND)
        assert types(decision) == [NodesProvisioned, NodePreempted]
        assert decision.events[1].deadline == NOON + SECOND

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

    def test_of_a_node_count_beside_one_that_has_ended(self):
        one_left = exits(running(), {0: 143}).attempt
        assert [node.has_ended for node in one_left.nodes] == [True, False]
        decision = shown(one_left, ended(0, 143), replace(self.notice(), index=1))
        assert [event.node_id for event in decision.events] == ["a-ftjob-1-e1-n1"]

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
        assert (decision.events[0].deadline, decision.events[0].source) == (NOON, "preemption")

    def test_that_came_too_late_have_the_source_that_the_backend_kept(self):
        late = ended(0, 143, cause=Cause.PREEMPTED, notice_deadline=NOON, notice_source="eviction")
        decision = shown(running(), late)
        assert (types(decision), decision.events[0].source) == ([NodePreempted], "eviction")

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

    def test_is_refused_with_the_state_of_the_attempt(self):
        with pytest.raises(Refused, match=r"no runner to take at .*: attempt a-ftjob-1-e1 is creating"):
            preempt(creating())

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
        drained = pools.on_drained(pool, machine)
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
