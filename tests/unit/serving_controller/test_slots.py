from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.deployment import (
    DeploymentFailed,
    DeploymentIdle,
    DeploymentReady,
    DeploymentRolledBack,
    DeploymentStopped,
)
from services.serving_controller.decide import slots
from services.serving_controller.decide.slots import Served, SlotDecision
from services.serving_controller.model import Failure, Retired, SlotState
from tests.unit.serving_controller.builders import (
    BASE_SHA,
    KEEP,
    NOON,
    ONE,
    OTHER_SHA,
    TWO,
    a_pending_slot,
    a_ready_slot,
    a_servable,
    a_slot,
    an_address,
    approved,
    stale,
    withdrawn,
)

HERE, THERE = an_address(0), an_address(1)
AGAIN = an_address(0, "second")


def on_approved(slot, event, *, is_stale=False, full_name=ONE.full_name):
    return slots.on_approved(slot, event, at=NOON, full_name=full_name, is_stale=is_stale)


def on_withdrawn(slot, event):
    return slots.on_withdrawn(slot, event, now=NOON, keep=KEEP)


def on_stale(slot, event=None):
    return slots.on_stale(slot, event or stale(), now=NOON, keep=KEEP)


def reconcile(slot, served):
    return slots.reconcile(slot, served, now=NOON, keep=KEEP)


def set_idle(slot):
    return slots.set_idle(slot, now=NOON, keep=KEEP)


class TestIdle:
    def test_requests_go_nowhere_and_the_slot_stays_what_it_is(self):
        decision = set_idle(a_ready_slot(ONE, generation=3))
        assert decision.slot == a_ready_slot(ONE, generation=3, addresses=())
        [fact] = decision.events
        assert (type(fact), fact.digest, fact.generation) == (DeploymentIdle, ONE.digest, 3)
        assert decision.retired == (Retired(ONE, NOON + KEEP),)

    def test_what_is_nowhere_is_not_published_again(self):
        idle = a_ready_slot(ONE, addresses=())
        assert set_idle(idle) == SlotDecision(idle)

    def test_what_waits_continues_waiting(self):
        slot = a_pending_slot(TWO, over=a_ready_slot(ONE))
        decision = set_idle(slot)
        assert (decision.slot.state, decision.slot.desired) == (SlotState.PENDING, TWO)
        assert types(decision) == [DeploymentIdle]

    def test_it_is_published_as_ready_where_it_is_loaded_again(self):
        decision = reconcile(a_ready_slot(ONE, addresses=()), {ONE.served_name: everywhere(HERE)})
        assert types(decision) == [DeploymentReady]
        assert decision.slot.route.addresses == {HERE}


def everywhere(*addresses):
    return Served(frozenset(addresses), is_everywhere=True)


def types(decision):
    return [type(event) for event in decision.events]


class TestApproval:
    def test_is_pending_until_it_is_loaded(self):
        decision = on_approved(a_slot(), approved(ONE, 1))
        assert (decision.slot.state, decision.slot.desired) == (SlotState.PENDING, ONE)
        assert decision.events == ()

    @pytest.mark.parametrize("generation", [1, 2, 3])
    def test_of_an_older_or_equal_generation_is_dropped(self, generation):
        slot = a_ready_slot(TWO, generation=3)
        assert on_approved(slot, approved(ONE, generation)).slot == slot

    def test_leaves_the_version_before_in_its_place(self):
        slot = on_approved(a_ready_slot(ONE), approved(TWO, 2), full_name=TWO.full_name).slot
        assert slot.route.servable == ONE

    def test_on_a_stale_base_fails_at_once(self):
        decision = on_approved(a_slot(), approved(ONE, 1), is_stale=True)
        (failed,) = decision.events
        assert isinstance(failed, DeploymentFailed)
        assert (failed.code, failed.generation, failed.digest) == ("stale", 1, ONE.digest)
        assert not decision.slot.is_wanted

    def test_after_a_withdrawal_of_a_higher_generation_is_dropped(self):
        slot = on_withdrawn(a_slot(), withdrawn(5)).slot
        assert on_approved(slot, approved(ONE, 4)).slot.state is SlotState.WITHDRAWN


class TestWithdrawal:
    def test_unroutes_and_keeps_it_loaded_a_while(self):
        decision = on_withdrawn(a_ready_slot(ONE), withdrawn(2))
        (stopped,) = decision.events
        assert isinstance(stopped, DeploymentStopped)
        assert (stopped.generation, stopped.digest) == (2, ONE.digest)
        assert (decision.slot.route, decision.slot.state) == (None, SlotState.WITHDRAWN)
        (retired,) = decision.retired
        assert (retired.servable, retired.keep_until) == (ONE, NOON + KEEP)

    def test_of_what_was_never_served_is_published_too(self):
        decision = on_withdrawn(a_pending_slot(ONE, generation=1), withdrawn(2))
        assert types(decision) == [DeploymentStopped]
        assert decision.retired == ()

    def test_of_what_waits_stops_what_is_routed(self):
        decision = on_withdrawn(a_pending_slot(TWO, over=a_ready_slot(ONE)), withdrawn(3))
        assert [event.digest for event in decision.events] == [ONE.digest]
        assert decision.retired == (Retired(ONE, NOON + KEEP),)

    def test_that_comes_first_only_counts(self):
        decision = on_withdrawn(a_slot(), withdrawn(2))
        assert (decision.slot.generation, decision.events) == (2, ())

    def test_of_an_older_generation_is_dropped(self):
        slot = a_ready_slot(ONE, generation=3)
        assert on_withdrawn(slot, withdrawn(3)).slot == slot


class TestStaleBase:
    def test_is_unrouted_and_failed(self):
        decision = on_stale(a_ready_slot(ONE))
        assert types(decision) == [DeploymentStopped, DeploymentFailed]
        assert decision.events[1].code == "stale"
        assert (decision.slot.route, decision.slot.state) == (None, SlotState.FAILED)

    def test_fails_what_waits_and_stops_what_is_routed(self):
        decision = on_stale(a_pending_slot(TWO, over=a_ready_slot(ONE)))
        assert [(type(event), event.digest) for event in decision.events] == [
            (DeploymentStopped, ONE.digest),
            (DeploymentFailed, TWO.digest),
        ]
        assert decision.retired == (Retired(ONE, NOON + KEEP),)

    @pytest.mark.parametrize("event", [stale("another"), stale(sha=OTHER_SHA)])
    def test_of_another_name_or_sha_touches_nothing(self, event):
        slot = a_ready_slot(ONE)
        assert on_stale(slot, event).slot == slot

    def test_leaves_a_version_on_newer_files_alone(self):
        newer = a_servable(2, base_sha=OTHER_SHA)
        decision = on_stale(a_pending_slot(newer, over=a_ready_slot(ONE)))
        assert types(decision) == [DeploymentStopped]
        assert decision.slot.is_wanted


class TestReconcile:
    def test_routes_when_every_replica_has_it(self):
        decision = reconcile(a_pending_slot(ONE, generation=1), {ONE.served_name: everywhere(HERE, THERE)})
        (ready,) = decision.events
        assert isinstance(ready, DeploymentReady)
        assert ready.served_name == f"{ONE.full_name}@{ONE.digest}"
        assert [replica.replica_id for replica in ready.replicas] == [HERE.replica_id, THERE.replica_id]
        assert (decision.slot.state, decision.slot.served) == (SlotState.READY, {ONE.digest})

    def test_waits_while_one_replica_is_without_it(self):
        slot = a_pending_slot(TWO, over=a_ready_slot(ONE, addresses=[HERE, THERE]))
        served = {TWO.served_name: Served(frozenset({HERE})), ONE.served_name: everywhere(HERE, THERE)}
        assert reconcile(slot, served) == slots.SlotDecision(slot)

    def test_fails_where_one_replica_could_not_load_it_and_keeps_the_one_before(self):
        slot = a_pending_slot(TWO, over=a_ready_slot(ONE))
        failure = Failure("load", "rank 600 is too much")
        served = {
            TWO.served_name: Served(frozenset({THERE}), failure=failure),
            ONE.served_name: everywhere(HERE),
        }
        decision = reconcile(slot, served)
        (failed,) = decision.events
        assert (failed.code, failed.reason, failed.digest) == ("load", "rank 600 is too much", TWO.digest)
        assert decision.slot.route.servable == ONE
        assert not decision.slot.is_wanted

    def test_keeps_the_version_before_loaded_for_a_while(self):
        slot = a_pending_slot(TWO, over=a_ready_slot(ONE))
        decision = reconcile(slot, {TWO.served_name: everywhere(HERE), ONE.served_name: everywhere(HERE)})
        assert decision.retired == (Retired(ONE, NOON + KEEP),)
        assert types(decision) == [DeploymentReady]

    def test_tells_when_an_earlier_digest_is_back(self):
        over = a_ready_slot(TWO, generation=2, served=frozenset({ONE.digest, TWO.digest}))
        decision = reconcile(
            a_pending_slot(ONE, generation=3, over=over), {ONE.served_name: everywhere(HERE)}
        )
        assert types(decision) == [DeploymentReady, DeploymentRolledBack]
        assert decision.events[1].previous_digest == TWO.digest
        assert decision.slot.served == {ONE.digest, TWO.digest}

    def test_answers_a_new_generation_of_what_is_served_already(self):
        slot = a_pending_slot(ONE, generation=2, over=a_ready_slot(ONE))
        decision = reconcile(slot, {ONE.served_name: everywhere(HERE)})
        assert [event.generation for event in decision.events] == [2]
        assert decision.retired == ()

    def test_tells_the_new_start_of_a_replica(self):
        decision = reconcile(a_ready_slot(ONE), {ONE.served_name: everywhere(AGAIN)})
        (ready,) = decision.events
        assert ready.replicas[0].incarnation == "second"
        assert ready.generation == 1

    def test_says_nothing_while_no_replica_is_left(self):
        decision = reconcile(a_ready_slot(ONE), {ONE.served_name: Served()})
        assert decision.events == ()
        assert decision.slot.route.addresses == frozenset()
        assert decision.slot.state is SlotState.READY

    def test_leaves_what_another_replica_set_serves_alone(self):
        slot = a_ready_slot(ONE)
        assert reconcile(slot, {TWO.served_name: everywhere(HERE)}).slot == slot

    def test_fails_what_no_replica_could_load_again_once_none_is_asked_any_more(self):
        once, last = (Failure("load", "file is gone", is_final=is_final) for is_final in (False, True))
        assert reconcile(a_ready_slot(ONE), {ONE.served_name: Served(failure=once)}).slot.is_wanted
        assert types(reconcile(a_ready_slot(ONE), {ONE.served_name: Served(failure=last)})) == [
            DeploymentFailed
        ]

    def test_fails_what_has_failed_once(self):
        failure = Failure("load", "file is gone", is_final=True)
        failed = reconcile(a_ready_slot(ONE), {ONE.served_name: Served(failure=failure)}).slot
        assert reconcile(failed, {ONE.served_name: Served(failure=failure)}) == SlotDecision(failed)

    def test_keeps_what_one_replica_serves_whatever_another_says(self):
        slot = a_ready_slot(ONE, addresses={HERE, THERE})
        failure = Failure("load", "the disk is on fire", is_final=True)
        decision = reconcile(slot, {ONE.served_name: Served(frozenset({HERE}), failure=failure)})
        assert types(decision) == [DeploymentReady]
        assert decision.slot.route.addresses == {HERE}

    def test_keeps_what_was_served_while_its_replica_does_not_start(self):
        served = {ONE.served_name: Served(failure=Failure("replica", "out of memory"))}
        assert reconcile(a_ready_slot(ONE), served).slot.state is SlotState.READY
        assert types(reconcile(a_pending_slot(ONE, generation=1), served)) == [DeploymentFailed]

    def test_is_quiet_when_nothing_changed(self):
        slot = a_ready_slot(ONE)
        assert reconcile(slot, {ONE.served_name: everywhere(HERE)}) == slots.SlotDecision(slot)


facts = st.one_of(
    st.tuples(st.just("approve"), st.integers(1, 6), st.integers(1, 2)),
    st.tuples(st.just("withdraw"), st.integers(1, 6), st.just(0)),
)


@given(st.lists(facts, max_size=12), st.randoms())
def test_the_highest_generation_wins_in_any_order(sequence, random):
    """Generations are unique in the registry; redeliveries and other orders change nothing."""
    by_generation = {generation: (kind, number) for kind, generation, number in sequence}
    arrivals = [*by_generation.items(), *by_generation.items()]
    random.shuffle(arrivals)
    slot = a_slot()
    for generation, (kind, number) in arrivals:
        servable = (ONE, TWO)[number - 1]
        if kind == "approve":
            slot = on_approved(slot, approved(servable, generation), full_name=servable.full_name).slot
        else:
            slot = on_withdrawn(slot, withdrawn(generation)).slot
    if not by_generation:
        return
    last = max(by_generation)
    kind, number = by_generation[last]
    assert slot.generation == last
    assert slot.desired == ((ONE, TWO)[number - 1] if kind == "approve" else None)


def test_a_route_outlives_its_approval_only_as_long_as_it_is_kept():
    decision = on_withdrawn(a_ready_slot(ONE), withdrawn(2))
    assert decision.retired[0].keep_until - NOON == timedelta(seconds=60)
    assert ONE.base_sha == BASE_SHA
