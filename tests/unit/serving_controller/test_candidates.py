"""Places for versions under evaluation: none that is served, none for long, and every command answered."""

from dataclasses import replace
from datetime import timedelta

import pytest

from schemas.base import CommandRefused
from schemas.deployment import CandidateReady, LoadCandidate
from services.serving_controller.decide import candidates, pools
from services.serving_controller.decide.pools import Load, Policy, Unload
from services.serving_controller.model import Candidate, Failure, Phase, Servable, is_candidate
from tests.unit.serving_controller.builders import (
    BASE_SHA,
    NOON,
    ONE,
    OTHER_SHA,
    POOL,
    TWO,
    a_replica,
    a_replica_set,
    a_servable,
    an_address,
)

UNTIL = NOON + timedelta(minutes=30)
ASKED = LoadCandidate(
    eval_id="eval-1", model_id="mv-1", digest=ONE.digest, base_sha=BASE_SHA, rank=8, until=UNTIL
)
WAITING = candidates.on_asked(ASKED, command_id="c-1")
NAME = WAITING.servable.served_name
HOSTED = replace(WAITING, host=an_address())
HAVING = a_replica(loaded=frozenset({NAME}))


def with_candidates(*adapters, waiting: tuple[Candidate, ...] = (WAITING,)):
    return a_replica_set(*adapters, candidates={each.servable.served_name: each for each in waiting})


def plan(replica_set, *replicas, **policy):
    return pools.plan(replica_set, replicas, now=NOON, policy=Policy(**policy))


def reconcile(candidate, *replicas, adapters=(), failures=None, max_adapters=8):
    replica_set = with_candidates(*adapters, waiting=(candidate,))
    return candidates.reconcile(candidate, replica_set, replicas, failures or {}, max_adapters=max_adapters)


def test_what_was_asked_for_is_kept_whole():
    assert candidates.on_asked(ASKED, command_id="c-1") == Candidate(
        "eval-1",
        Servable(
            model_id="mv-1",
            full_name="gate-eval-1",
            kind="adapter",
            digest=ONE.digest,
            base_model="",
            base_sha=BASE_SHA,
            rank=8,
        ),
        UNTIL,
        "c-1",
    )


class TestItsName:
    def test_is_its_own_and_holds_the_digest(self):
        assert f"gate-eval-1@{ONE.digest}" == NAME
        assert is_candidate(NAME)

    @pytest.mark.parametrize(
        "name", [ONE.served_name, "gate-eval-1@base", "gate-x@probe-0", "tiny", "tiny@base"]
    )
    def test_is_none_of_a_slot_or_a_base_model(self, name):
        assert not is_candidate(name)


class TestDesiredReplicaSets:
    def replica_sets(self, candidate, bases):
        return pools.desired_replica_sets({}, (), bases, candidates=[candidate], now=NOON, policy=Policy())

    def test_lend_a_place_where_the_base_model_is_served(self):
        replica_sets = self.replica_sets(WAITING, {"tiny": BASE_SHA, "other": OTHER_SHA})
        assert set(replica_sets[POOL].candidates) == {NAME}
        assert [name for name, replica_set in replica_sets.items() if replica_set.candidates] == [POOL]
        assert replica_sets[POOL].adapters == {}

    def test_start_nothing_for_it(self):
        assert self.replica_sets(WAITING, {}) == {}

    def test_lend_none_after_its_time(self):
        assert self.replica_sets(replace(WAITING, until=NOON), {"tiny": BASE_SHA})[POOL].candidates == {}


class TestPlan:
    def test_loads_it_on_one_replica_after_what_is_served(self):
        replica_set = with_candidates(TWO, waiting=(WAITING,))
        first, second = a_replica(0), a_replica(1, loaded=frozenset({TWO.served_name}))
        assert plan(replace(replica_set, num_replicas=2), first, second) == (
            Load(first.replica_id, TWO),
            Load(first.replica_id, WAITING.servable),
        )

    def test_leaves_it_where_it_is_while_it_is_wanted(self):
        elsewhere = a_replica(1, loaded=frozenset({NAME}))
        hosted = replace(WAITING, host=elsewhere.address)
        replica_set = replace(with_candidates(waiting=(hosted,)), num_replicas=2)
        assert plan(replica_set, a_replica(0), elsewhere) == ()

    def test_unloads_it_when_nobody_knows_of_it_any_more(self):
        assert plan(a_replica_set(), HAVING) == (Unload(HAVING.replica_id, NAME),)

    def test_unloads_one_whose_load_was_cut_short(self):
        replica = a_replica(strays=frozenset({NAME}))
        assert plan(a_replica_set(), replica) == (Unload(replica.replica_id, NAME),)
        assert plan(with_candidates(), replica) == (Load(replica.replica_id, WAITING.servable),)

    def test_does_not_load_again_what_went_with_its_replica(self):
        assert plan(with_candidates(waiting=(HOSTED,)), a_replica()) == ()

    def test_restarts_no_replica_for_its_rank(self):
        large = replace(WAITING, servable=a_servable(9, rank=64, full_name="gate-eval-1"))
        assert plan(with_candidates(waiting=(large,)), a_replica()) == ()

    def test_takes_no_slot_that_is_served(self):
        served = [a_servable(number) for number in range(1, 4)]
        replica = a_replica(loaded=frozenset(each.served_name for each in served))
        replica_set = with_candidates(*served)
        assert plan(replica_set, replica, max_adapters=3) == ()
        assert plan(replica_set, replica, max_adapters=4) == (Load(replica.replica_id, WAITING.servable),)

    def test_puts_one_candidate_in_one_free_slot(self):
        other = replace(WAITING, eval_id="eval-2", servable=a_servable(9, full_name="gate-eval-2"))
        replica_set = with_candidates(waiting=(HOSTED, other))
        assert plan(replica_set, HAVING, max_adapters=1) == ()


class TestReconcile:
    def test_says_where_it_is_once(self):
        decision = reconcile(WAITING, HAVING)
        (fact,) = decision.events
        assert isinstance(fact, CandidateReady)
        assert (fact.eval_id, fact.digest, fact.served_name, fact.served_base) == (
            "eval-1", ONE.digest, NAME, "tiny",
        )  # fmt: skip
        assert fact.replica.url == HAVING.address.url
        assert decision.candidate == HOSTED
        assert reconcile(HOSTED, HAVING) == candidates.CandidateDecision(HOSTED)

    def test_says_of_several_replicas_the_one_that_has_it(self):
        there = a_replica(1, loaded=frozenset({NAME}))
        assert reconcile(WAITING, a_replica(0), there).candidate.host == there.address

    def test_says_it_again_where_it_is_asked_again(self):
        again = candidates.on_asked(ASKED, command_id="c-2")
        assert isinstance(reconcile(again, HAVING).events[0], CandidateReady)

    @pytest.mark.parametrize(
        ("replicas", "extra", "code"),
        [
            ((), {}, "replica"),
            ((a_replica(phase=Phase.STARTING),), {}, "replica"),
            ((a_replica(),), {"failures": {NAME: Failure("probe", "it answers as its base")}}, "probe"),
            ((a_replica(max_rank=4),), {}, "rank"),
            ((a_replica(),), {"adapters": (TWO,), "max_adapters": 1}, "full"),
        ],
    )
    def test_refuses_the_command_and_forgets_it(self, replicas, extra, code):
        decision = reconcile(WAITING, *replicas, **extra)
        (refused,) = decision.events
        assert isinstance(refused, CommandRefused)
        assert (refused.subject_id, refused.command, refused.command_id, refused.code) == (
            "eval-1", "LoadCandidate", "c-1", code,
        )  # fmt: skip
        assert decision.candidate is None

    def test_waits_while_it_may_still_be_loaded(self):
        assert reconcile(WAITING, a_replica()) == candidates.CandidateDecision(WAITING)

    @pytest.mark.parametrize(
        "replicas",
        [(), (a_replica(),), (replace(HAVING, address=an_address(incarnation="second")),)],
        ids=["gone", "unloaded", "restarted"],
    )
    def test_forgets_what_went_with_its_replica(self, replicas):
        assert reconcile(HOSTED, *replicas) == candidates.CandidateDecision(None)
