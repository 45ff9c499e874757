from dataclasses import replace
from datetime import timedelta

import pytest

from schemas.deployment import DeploymentReady, DeploymentRolledBack, DeploymentStep
from services.serving_controller.decide import slots
from services.serving_controller.decide.slots import Served
from services.serving_controller.model import Approval, Failure, LoadTimes, SlotState
from tests.unit.serving_controller.builders import (
    KEEP,
    NOON,
    ONE,
    TWO,
    a_pending_slot,
    a_ready_slot,
    a_slot,
    an_address,
    approved,
    withdrawn,
)

HERE, THERE = an_address(0), an_address(1)
EVERYWHERE = Served(frozenset({HERE, THERE}), is_everywhere=True)


def times(address=HERE, *, loaded_after=5.0, servable=ONE, **changes):
    """Steps of 0.25, 1, 0.5 and 2 s that ended so many seconds after noon."""
    fields = {
        "served_name": servable.served_name,
        "replica_id": address.replica_id,
        "incarnation": address.incarnation,
        "fetch_seconds": 0.25,
        "load_seconds": 1.0,
        "read_back_seconds": 0.5,
        "probe_seconds": 2.0,
        "loaded_at": NOON + timedelta(seconds=loaded_after),
    }
    return LoadTimes(**fields | changes)


def swap(*loads, slot=None, now=10.0):
    """The swap of a version that was approved at noon, routed so many seconds later."""
    slot = slot or a_pending_slot(ONE, generation=1, approval=Approval(1, NOON))
    decision = slots.reconcile(
        slot,
        {ONE.served_name: EVERYWHERE},
        times=loads,
        now=NOON + timedelta(seconds=now),
        keep=KEEP,
    )
    return decision.events[0].swap


class TestSwap:
    def test_has_the_steps_of_each_replica_that_loaded_it(self):
        result = swap(times(HERE), times(THERE, loaded_after=9.5, load_seconds=3.0))
        assert [each.replica_id for each in result.replicas] == [HERE.replica_id, THERE.replica_id]
        first, second = result.replicas
        assert (first.fetch_seconds, first.load_seconds) == (0.25, 1.0)
        assert (first.read_back_seconds, first.probe_seconds) == (0.5, 2.0)
        assert second.load_seconds == 3.0
        assert (result.route_seconds, result.total_seconds) == (0.5, 10.0)

    def test_that_loads_nothing_is_routed_from_its_approval_on(self):
        result = swap(times(loaded_after=-1.0), now=0.125)
        assert (result.replicas, result.route_seconds, result.total_seconds) == ((), 0.125, 0.125)

    @pytest.mark.parametrize(
        "other", [times(an_address(0, "second")), times(servable=TWO), times(an_address(2))]
    )
    def test_has_no_load_of_another_start_version_or_replica(self, other):
        assert swap(times(HERE), other).replicas == swap(times(HERE)).replicas

    def test_has_no_time_below_zero_where_clocks_differ(self):
        result = swap(times(loaded_after=2.0), now=-1.0)
        assert (result.route_seconds, result.total_seconds) == (0.0, 0.0)

    def test_is_not_timed_where_its_approval_was_not_heard(self):
        """An older release wrote the row, and left what this one had noted of an earlier generation."""
        slot = a_pending_slot(ONE, generation=2, approval=Approval(1, NOON))
        assert swap(times(), slot=slot) is None
        assert swap(times(), slot=a_pending_slot(ONE, generation=2)) is None

    def test_begins_with_the_newest_approval(self):
        slot = slots.on_approved(
            a_ready_slot(ONE, approval=Approval(1, NOON - KEEP)),
            approved(ONE, 2),
            at=NOON,
            full_name=ONE.full_name,
            is_stale=False,
        ).slot
        assert slot.approved_at == NOON
        assert swap(slot=slot).total_seconds == 10.0

    def test_is_of_no_withdrawn_generation(self):
        slot = slots.on_withdrawn(
            a_ready_slot(ONE, approval=Approval(1, NOON)), withdrawn(2), now=NOON, keep=KEEP
        ).slot
        assert slot.approved_at is None

    def test_is_said_when_the_version_is_routed_and_not_when_its_replicas_change(self):
        slot = a_ready_slot(ONE, addresses={HERE}, approval=Approval(1, NOON))
        decision = slots.reconcile(slot, {ONE.served_name: EVERYWHERE}, now=NOON, keep=KEEP)
        [ready] = decision.events
        assert ready.swap is None
        assert "swap" not in ready.model_dump(mode="json")

    def test_of_a_roll_back_is_said_by_the_fact_that_it_is_ready(self):
        over = a_ready_slot(TWO, generation=2, served=frozenset({ONE.digest, TWO.digest}))
        slot = replace(a_pending_slot(ONE, generation=3, over=over), approval=Approval(3, NOON))
        ready, back = slots.reconcile(
            slot, {ONE.served_name: EVERYWHERE}, now=NOON + timedelta(seconds=2), keep=KEEP
        ).events
        assert (type(ready), type(back)) == (DeploymentReady, DeploymentRolledBack)
        assert ready.swap.total_seconds == 2.0


class TestFailedStep:
    def failed(self, failure):
        slot = a_pending_slot(ONE, generation=1)
        [fact] = slots.reconcile(slot, {ONE.served_name: Served(failure=failure)}, now=NOON, keep=KEEP).events
        return fact

    @pytest.mark.parametrize("step", [DeploymentStep.LOAD, DeploymentStep.READ_BACK, DeploymentStep.PROBE])
    def test_is_named(self, step):
        assert self.failed(Failure("load", "the disk is on fire", step)).step is step

    def test_is_none_where_no_replica_came_to_one(self):
        fact = self.failed(Failure("replica", "out of memory"))
        assert fact.step is None
        assert "step" not in fact.model_dump(mode="json")

    def test_is_none_of_what_is_stale(self):
        decision = slots.on_approved(
            a_slot(SlotState.WITHDRAWN), approved(ONE, 1), at=NOON, full_name=ONE.full_name, is_stale=True
        )
        assert decision.events[0].step is None
