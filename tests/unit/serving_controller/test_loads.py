from datetime import timedelta

from services.serving_controller.decide import loads
from services.serving_controller.decide.pools import End, Load, Policy, Unload
from services.serving_controller.model import Failure, Phase
from tests.unit.serving_controller.builders import NOON, ONE, a_replica, an_address

POLICY = Policy()
REFUSED = {ONE.served_name: Failure("load", "the disk is on fire")}
HERE = a_replica(0)
THERE = a_replica(1, address=an_address(1, "another"), loaded=frozenset({ONE.served_name}))


def refused(times, replica=HERE):
    """The refusals after so many loads, and the failure of the last."""
    refusals, failures = {}, {}
    for _ in range(times):
        refusals, failures = loads.after(refusals, replica, REFUSED, now=NOON, policy=POLICY)
    return refusals, failures[ONE.served_name]


class TestRefusedLoad:
    def test_is_tried_again_later_each_time(self):
        load, seen = Load(HERE.replica_id, ONE), {HERE.replica_id: HERE}
        for times, pause in ((1, 1), (2, 2), (3, 4)):
            refusals, _ = refused(times)
            due = NOON + timedelta(seconds=pause)
            assert not loads.is_due(load, seen, refusals, now=due - timedelta(milliseconds=1))
            assert loads.is_due(load, seen, refusals, now=due)

    def test_waits_for_a_minute_at_most(self):
        (refusal,) = refused(30)[0].values()
        assert (refusal.tries, refusal.again_at) == (30, NOON + timedelta(minutes=1))

    def test_holds_up_nothing_else(self):
        refusals, _ = refused(1)
        unload = Unload(HERE.replica_id, ONE.served_name)
        assert loads.is_due(unload, {HERE.replica_id: HERE}, refusals, now=NOON)
        assert loads.is_due(Load(THERE.replica_id, ONE), {THERE.replica_id: THERE}, refusals, now=NOON)

    def test_is_final_after_the_last_try(self):
        assert [refused(times)[1].is_final for times in range(1, 6)] == [False] * 4 + [True]

    def test_that_is_final_by_its_kind_is_so_at_the_first_try(self):
        final = {ONE.served_name: Failure("rank", "too large for this pool", is_final=True)}
        _, failures = loads.after({}, HERE, final, now=NOON, policy=POLICY)
        assert failures == final

    def test_is_forgotten_with_its_replica_and_once_it_is_loaded(self):
        refusals, _ = refused(2)
        again = a_replica(0, address=an_address(0, "second"))
        assert loads.still_open(refusals, [HERE, THERE]) == refusals
        assert loads.still_open(refusals, [again, THERE]) == {}
        assert loads.still_open(refusals, [a_replica(0, loaded=frozenset({ONE.served_name}))]) == {}


class TestReplicaThatRefuses:
    def ends(self, times, *replicas):
        return loads.ends(refused(times)[0], replicas, now=NOON, policy=POLICY)

    def test_ends_after_the_last_try_where_another_one_serves_it(self):
        assert self.ends(4, HERE, THERE) == ()
        (end,) = self.ends(5, HERE, THERE)
        assert isinstance(end, End)
        assert (end.replica.replica_id, end.replica.phase) == (HERE.replica_id, Phase.LOST)
        assert end.reason == end.replica.reason == f"{ONE.served_name} could not be loaded 5 times"

    def test_stays_where_no_other_has_it_either(self):
        assert self.ends(5, HERE, a_replica(1)) == ()
