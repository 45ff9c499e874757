from collections import defaultdict
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.specification import Method
from services.serving_controller.decide import pools
from services.serving_controller.decide.pools import (
    Admit,
    Announce,
    AskDevices,
    AwaitDevices,
    End,
    Forget,
    GiveBackDevices,
    Load,
    Policy,
    Start,
    Unload,
)
from services.serving_controller.model import (
    Candidate,
    DesiredServable,
    Failure,
    Phase,
    ReplicaSet,
    ReplicaSetServables,
    Retired,
    allowed_rank,
    pool_of,
)
from shared.device_leases.lease import HeldLease, LeaseState
from tests.builders import capabilities
from tests.unit.serving_controller.builders import (
    BASE_SHA,
    FULL,
    NOON,
    ONE,
    OTHER_SHA,
    POOL,
    TWO,
    a_pending_slot,
    a_ready_slot,
    a_replica,
    a_replica_set,
    a_servable,
    an_address,
)

POLICY = Policy()
LATER = NOON + timedelta(minutes=5)


def plan(replica_set, *replicas, now=NOON, policy=POLICY):
    return pools.plan(replica_set, replicas, now=now, policy=policy)


def replica_sets_of(slots=(), retired=(), bases=None, policy=POLICY):
    by_replica_set = defaultdict(list)
    for each in (each for slot in slots for each in slot.desired_servables.values()):
        by_replica_set[each.servable.replica_set].append(each)
    of_replica_sets = {name: ReplicaSetServables.of(each) for name, each in by_replica_set.items()}
    return pools.desired_replica_sets(of_replica_sets, retired, bases or {}, now=NOON, policy=policy)


def starting(**changes):
    return a_replica(phase=Phase.STARTING, served_base="", **changes)


def lost(failures=1, *, not_before=NOON, **changes):
    return a_replica(phase=Phase.LOST, is_alive=False, failures=failures, not_before=not_before, **changes)


class TestResident:
    @given(st.integers(1, 12), st.sets(st.integers(0, 11)), st.integers(1, 8))
    def test_all_that_waits_and_of_the_others_the_first_so_many(self, number, waiting, at_most):
        servables = [a_servable(each + 1) for each in range(number)]
        everything = [
            DesiredServable(each, is_pending=index in waiting) for index, each in enumerate(servables)
        ]
        of_set = ReplicaSetServables.of(everything)
        resident = pools.resident(of_set, at_most=at_most)
        served = [each.served_name for index, each in enumerate(servables) if index not in waiting]
        left = set(served[at_most:])
        assert list(resident.servables) == [name for name in of_set.servables if name not in left]
        assert resident.pending == of_set.pending <= resident.servables.keys()

    def test_a_rank_is_started_for_though_its_adapter_is_not_loaded(self):
        everything = [
            DesiredServable(ONE, is_pending=False),
            DesiredServable(a_servable(2, rank=200), is_pending=False),
        ]
        of_set = pools.resident(ReplicaSetServables.of(everything), at_most=1)
        [replica_set] = pools.desired_replica_sets({POOL: of_set}, (), {}, now=NOON, policy=POLICY).values()
        assert (list(replica_set.adapters), replica_set.max_rank) == ([ONE.served_name], 256)

    def test_what_leaves_is_neither_loaded_nor_routed_and_unloaded_later(self):
        of_replica_sets = {POOL: ReplicaSetServables.of([DesiredServable(ONE, is_pending=False)])}
        old = [Retired(TWO, NOON + timedelta(seconds=1)), Retired(ONE, NOON + timedelta(seconds=1))]
        [replica_set] = pools.desired_replica_sets(
            of_replica_sets, old, {"tiny": BASE_SHA}, now=NOON, policy=POLICY
        ).values()
        assert list(pools.names_of(replica_set)) == [ONE.served_name]
        assert plan(replica_set, a_replica(loaded=frozenset({ONE.served_name}))) == ()
        both = a_replica(loaded=frozenset({ONE.served_name, TWO.served_name}))
        assert plan(replica_set, both) == ()
        [later] = pools.desired_replica_sets(
            of_replica_sets, old, {"tiny": BASE_SHA}, now=NOON + timedelta(seconds=1), policy=POLICY
        ).values()
        assert plan(later, both) == (Unload(both.replica_id, TWO.served_name),)


class TestDesiredReplicaSets:
    def test_serve_a_registered_base_model_as_it_is(self):
        replica_sets = replica_sets_of(bases={"tiny": BASE_SHA, "also": BASE_SHA, "other": OTHER_SHA})
        assert {name: replica_set.base_names for name, replica_set in replica_sets.items()} == {
            POOL: ("also", "tiny"),
            pool_of(OTHER_SHA): ("other",),
        }

    def test_a_base_model_without_adapters_is_started_without_them(self):
        bases = {"tiny": BASE_SHA, "plain": OTHER_SHA}
        replica_sets = pools.desired_replica_sets(
            {}, (), bases, adapter_layers={OTHER_SHA: ()}, now=NOON, policy=POLICY
        )
        ranks = {name: plan(replica_set)[0].max_rank for name, replica_set in replica_sets.items()}
        assert ranks == {POOL: POLICY.rank, pool_of(OTHER_SHA): 0}
        assert replica_sets[POOL].adapter_layers is None

    def test_experts_get_no_adapters(self):
        refused = {Method.LORA: "vLLM serves it without adapters"}
        moe_capabilities = capabilities(num_experts=4)
        assert pools.adapter_layers(moe_capabilities) == ("k_proj", "q_proj")
        assert pools.adapter_layers(capabilities(refused_methods=refused, num_experts=4)) == ()
        assert pools.adapter_layers(capabilities()) is None
        assert pools.adapter_layers(None) is None

    def test_start_at_the_first_approval_where_that_is_the_policy(self):
        lazy = Policy(serve_base_models=False)
        assert replica_sets_of(bases={"tiny": BASE_SHA}, policy=lazy) == {}
        replica_sets = replica_sets_of([a_pending_slot(ONE)], bases={"tiny": BASE_SHA}, policy=lazy)
        assert replica_sets[POOL].base_names == ("tiny",)

    def test_hold_what_is_routed_while_the_next_version_is_loaded(self):
        replica_sets = replica_sets_of([a_pending_slot(TWO, over=a_ready_slot(ONE))])
        assert set(replica_sets[POOL].adapters) == {ONE.served_name, TWO.served_name}

    def test_hold_what_was_routed_a_moment_ago(self):
        old = [Retired(ONE, NOON + timedelta(seconds=1)), Retired(TWO, NOON)]
        assert set(replica_sets_of(retired=old)[POOL].adapters) == {ONE.served_name}

    def test_know_what_somebody_waits_for(self):
        replica_sets = replica_sets_of([a_pending_slot(TWO, over=a_ready_slot(ONE))])
        assert replica_sets[POOL].pending == {TWO.served_name}

    def test_give_a_full_model_replicas_of_its_own(self):
        policy = Policy(replicas_per_pool=2)
        assert replica_sets_of([a_pending_slot(FULL)], policy=policy) == {
            FULL.replica_set: ReplicaSet(
                FULL.replica_set,
                BASE_SHA,
                full=FULL,
                pending=frozenset({FULL.served_name}),
                adapter_layers=(),
                num_replicas=2,
            )
        }
        assert FULL.replica_set != POOL

    def test_load_a_digest_once_for_all_its_slots(self):
        replica_sets = replica_sets_of([a_ready_slot(ONE), replace(a_ready_slot(ONE), name="alias")])
        assert list(replica_sets[POOL].adapters) == [ONE.served_name]


class TestPlan:
    def test_starts_what_is_missing(self):
        assert plan(a_replica_set(num_replicas=2), a_replica(0)) == (Start(f"{POOL}-1", 32, 0),)

    def test_starts_with_the_rank_that_the_adapters_need(self):
        (start,) = plan(a_replica_set(ONE, a_servable(2, rank=65)))
        assert start.max_rank == 128

    def test_waits_before_it_starts_again(self):
        replica = lost(3, not_before=NOON + timedelta(seconds=1))
        assert plan(a_replica_set(), replica) == ()
        assert plan(a_replica_set(), replica, now=NOON + timedelta(seconds=1)) == (
            Start(replica.replica_id, 32, 3),
        )

    def test_admits_a_replica_that_answers(self):
        assert plan(a_replica_set(), starting()) == (Admit(starting()),)

    def test_waits_for_a_replica_that_does_not_answer_yet(self):
        replica = starting(answers=False)
        assert plan(a_replica_set(), replica, now=NOON + POLICY.start_within) == ()
        (end,) = plan(a_replica_set(), replica, now=NOON + POLICY.start_within + timedelta(seconds=1))
        assert "no answer 601 s after its start" in end.reason

    def test_ends_what_died_and_what_fell_silent(self):
        (gone,) = plan(a_replica_set(), a_replica(is_alive=False, reason="killed"), now=LATER)
        assert (type(gone), gone.reason, gone.replica.phase) == (End, "killed", Phase.LOST)
        (silent,) = plan(a_replica_set(), a_replica(answers=False), now=LATER)
        assert silent.reason == "the process does not answer"

    def test_forgets_what_was_loaded_in_a_lost_process(self):
        (end,) = plan(a_replica_set(ONE), a_replica(is_alive=False, loaded=frozenset({ONE.served_name})))
        assert end.replica.loaded == frozenset()

    def test_loads_and_unloads(self):
        replica = a_replica(loaded=frozenset({TWO.served_name}))
        assert plan(a_replica_set(ONE), replica) == (
            Load(replica.replica_id, ONE),
            Unload(replica.replica_id, TWO.served_name),
        )

    def test_loads_what_comes_behind_what_is_loaded(self):
        replica = a_replica(loaded=frozenset({ONE.served_name}))
        assert plan(a_replica_set(ONE, TWO), replica) == (Load(replica.replica_id, TWO),)

    @pytest.mark.parametrize("order", [(ONE, TWO), (TWO, ONE)])
    def test_loads_in_the_order_in_which_it_is_wanted(self, order):
        actions = plan(a_replica_set(*order), a_replica())
        assert [action.servable for action in actions if isinstance(action, Load)] == list(order)

    def test_says_once_for_each_name_that_the_base_is_served(self):
        replica_set = a_replica_set(base_names=("also", "tiny"))
        assert plan(replica_set, a_replica()) == (Announce(a_replica(), ("also",)),)
        assert plan(replica_set, a_replica(announced=frozenset({"also", "tiny"}))) == ()

    def test_exchanges_one_replica_at_a_time_for_a_higher_rank(self):
        replica_set = a_replica_set(a_servable(1, rank=64), num_replicas=2)
        reason = "started for rank 32, rank 64 is needed"
        assert plan(replica_set, a_replica(0), a_replica(1)) == (
            End(a_replica(0).lost(reason, failures=0, not_before=NOON), reason),
        )
        assert plan(replica_set, starting(answers=False, max_rank=64), a_replica(1)) == ()

    def test_does_not_load_what_is_too_large_for_a_replica(self):
        replica_set = a_replica_set(a_servable(1, rank=64), num_replicas=2)
        actions = plan(replica_set, starting(answers=False, max_rank=64), a_replica(1))
        assert not any(isinstance(action, Load) for action in actions)

    def test_ends_and_forgets_what_is_not_wanted(self):
        replica_set = a_replica_set(num_replicas=0)
        (end,) = plan(replica_set, a_replica())
        assert end.reason == end.replica.reason == "not needed any more"
        assert (end.replica.failures, end.replica.not_before) == (0, NOON)
        assert plan(replica_set, end.replica) == (Forget(end.replica),)

    def test_never_loads_into_a_full_models_replica(self):
        replica_set = a_replica_set(full=FULL, base_names=())
        assert plan(replica_set, a_replica(loaded=frozenset({FULL.served_name}))) == ()


class TestLeaving:
    """A replica that is one too many, where another one goes on."""

    UNTIL = NOON + POLICY.drain_within

    def leaving(self, **changes):
        return replace(a_replica(1).leaving("not needed any more", until=self.UNTIL), **changes)

    def test_first_nobody_asks_it_any_more(self):
        (drain,) = plan(a_replica_set(), a_replica(), a_replica(1))
        assert drain.replica == self.leaving()

    def test_a_candidate_keeps_it(self):
        """Its evaluation would begin again."""
        servable = a_servable(3)
        name = servable.served_name
        candidate = Candidate("eval-1", servable, LATER, "c-1", host=an_address(1))
        replica_set = a_replica_set(candidates={name: candidate})
        held = a_replica(1, loaded=frozenset({name}))
        assert plan(replica_set, a_replica(), held) == ()

    @pytest.mark.parametrize(
        ("is_busy", "after", "ends"),
        [
            (False, timedelta(seconds=4), False),
            (False, timedelta(seconds=5), True),
            (True, POLICY.drain_within - timedelta(seconds=1), False),
            (True, POLICY.drain_within, True),
        ],
    )
    def test_it_ends_once_it_has_answered_all_or_its_time_is_over(self, is_busy, after, ends):
        """It may have no request while gateways have not heard yet that it leaves."""
        actions = plan(a_replica_set(), a_replica(), self.leaving(is_busy=is_busy), now=NOON + after)
        assert [type(action) for action in actions] == ([End] if ends else [])

    def test_it_ends_though_it_would_be_needed_again(self):
        """Then it is started again."""
        (end,) = plan(a_replica_set(num_replicas=2), a_replica(), self.leaving(is_busy=False), now=self.UNTIL)
        assert (end.replica.phase, end.reason) == (Phase.LOST, "not needed any more")

    def test_one_that_died_or_is_silent_ends_at_once(self):
        for changes in ({"is_alive": False, "answers": False}, {"answers": False}):
            (end,) = plan(a_replica_set(), a_replica(), self.leaving(**changes))
            assert isinstance(end, End)

    def test_its_adapters_are_not_routed(self):
        name = ONE.served_name
        here, there = (a_replica(index, loaded=frozenset({name})) for index in range(2))
        gone = replace(self.leaving(), loaded=there.loaded)
        served = pools.served_by_name([name], [here, gone], {}, policy=POLICY)[name]
        assert (served.addresses, served.is_everywhere) == (frozenset({here.address}), True)


class TestBackOff:
    @pytest.mark.parametrize(("failures", "seconds"), [(0, 1), (1, 2), (2, 4), (5, 32), (20, 60)])
    def test_doubles_and_is_bounded(self, failures, seconds):
        (end,) = plan(a_replica_set(), starting(is_alive=False, failures=failures))
        assert end.replica.failures == failures + 1
        assert end.replica.not_before == NOON + timedelta(seconds=seconds)

    def test_begins_again_after_a_start_that_lasted(self):
        (end,) = plan(a_replica_set(), a_replica(is_alive=False, failures=7), now=NOON + POLICY.lasting)
        assert end.replica.failures == 1

    def test_continues_where_it_never_served_however_long_it_took(self):
        (end,) = plan(a_replica_set(), starting(is_alive=False, failures=7), now=NOON + POLICY.lasting)
        assert end.replica.failures == 8

    def test_continues_after_a_start_that_did_not_last(self):
        (end,) = plan(a_replica_set(), a_replica(is_alive=False, failures=7), now=NOON + timedelta(seconds=5))
        assert end.replica.failures == 8


class TestFound:
    def served_by_name(self, replica_set, *replicas, failures=None):
        return pools.served_by_name(pools.names_of(replica_set), replicas, failures or {}, policy=POLICY)

    def test_is_everywhere_when_no_ready_replica_is_without_it(self):
        here, without = a_replica(0, loaded=frozenset({ONE.served_name})), a_replica(1)
        replica_set = a_replica_set(ONE, num_replicas=2)
        assert self.served_by_name(replica_set, here)[ONE.served_name].is_everywhere
        assert not self.served_by_name(replica_set, here, without)[ONE.served_name].is_everywhere
        assert self.served_by_name(replica_set, here, without)[ONE.served_name].addresses == {here.address}

    def test_is_nowhere_while_no_replica_is_ready(self):
        served = self.served_by_name(a_replica_set(ONE), starting())[ONE.served_name]
        assert (served.is_everywhere, served.failure) == (False, None)

    def test_names_everything_that_the_replica_set_shall_serve(self):
        assert set(self.served_by_name(a_replica_set(ONE, TWO))) == {ONE.served_name, TWO.served_name}
        assert set(self.served_by_name(a_replica_set(full=FULL))) == {FULL.served_name}

    def test_fails_what_waits_for_a_replica_that_does_not_start(self):
        below = self.served_by_name(a_replica_set(ONE), lost(3, reason="out of memory"))
        assert below[ONE.served_name].failure is None
        failure = self.served_by_name(a_replica_set(ONE), lost(4, reason="out of memory"))[
            ONE.served_name
        ].failure
        assert (failure.code, "out of memory" in failure.reason) == ("replica", True)

    def test_does_not_fail_while_another_replica_serves(self):
        here = a_replica(1, loaded=frozenset({ONE.served_name}))
        assert self.served_by_name(a_replica_set(ONE), lost(9), here)[ONE.served_name].failure is None

    def test_passes_on_why_a_load_failed(self):
        failure = Failure("probe", "answers as its base")
        assert (
            self.served_by_name(a_replica_set(ONE), a_replica(), failures={ONE.served_name: failure})[
                ONE.served_name
            ].failure
            == failure
        )


@pytest.mark.parametrize(("rank", "allowed"), [(1, 1), (2, 8), (8, 8), (33, 64), (257, 320), (512, 512)])
def test_a_rank_is_rounded_up_to_one_that_the_engine_takes(rank, allowed):
    assert allowed_rank(rank) == allowed


class TestDevices:
    """Where replicas lease devices, each starts with a lease and runs as long as it has it."""

    FIRST = f"{POOL}-0"

    def lease(self, state=LeaseState.HELD, **changes):
        return replace(HeldLease(self.FIRST, "lease-1", state, (1,), until=LATER), **changes)

    def plan(self, *replicas, leases=(), **changes):
        return plan(a_replica_set(leases={each.subject: each for each in leases}, **changes), *replicas)

    def test_are_asked_for_before_a_start(self):
        assert self.plan() == (AskDevices(self.FIRST),)
        ended = self.lease(LeaseState.ENDED)
        assert self.plan(leases=[ended]) == (AskDevices(self.FIRST),)

    def test_are_awaited(self):
        queued = self.lease(LeaseState.QUEUED, reason="1 device of pool gpu: 2 held by jobs")
        assert self.plan(leases=[queued]) == (AwaitDevices(self.FIRST, queued.reason),)
        for lease in (self.lease(LeaseState.ASKED), self.lease(until=NOON)):
            assert self.plan(leases=[lease]) == (AwaitDevices(self.FIRST, ""),)

    def test_that_are_there_start_the_replica(self):
        assert self.plan(leases=[self.lease()]) == (Start(self.FIRST, 32, 0, self.lease()),)

    def test_that_are_refused_fail_the_start(self):
        refused = self.lease(LeaseState.REFUSED, until=None, reason="unknown_pool: no pool gpu")
        assert self.plan(leases=[refused]) == (Start(self.FIRST, 32, 0, refused),)

    def test_of_a_lost_replica_are_not_asked_for_before_its_pause_is_over(self):
        lost = a_replica(phase=Phase.LOST, not_before=LATER)
        assert self.plan(lost) == ()

    @pytest.mark.parametrize("phase", [Phase.STARTING, Phase.READY])
    def test_whose_lease_ended_end_the_replica(self, phase):
        ended = self.lease(LeaseState.ENDED, reason="the lease ended: expired")
        [action] = self.plan(a_replica(phase=phase), leases=[ended])
        assert (type(action), action.reason) == (End, "the lease ended: expired")
        [action] = self.plan(a_replica(phase=phase))
        assert (type(action), action.reason) == (End, "it has no lease of its devices")

    def test_are_given_back_where_no_replica_is_wanted_any_more(self):
        assert self.plan(leases=[self.lease()], num_replicas=0) == (GiveBackDevices(self.FIRST),)

    def test_stay_leased_until_the_replica_is_forgotten(self):
        gone = a_replica(phase=Phase.LOST)
        assert self.plan(gone, leases=[self.lease()], num_replicas=0) == (Forget(gone),)

    def test_of_a_ready_replica_change_nothing(self):
        assert self.plan(a_replica(), leases=[self.lease()]) == ()
