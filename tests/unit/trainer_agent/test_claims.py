"""Whose claims count."""

from dataclasses import replace
from itertools import permutations

import pytest

from schemas.envelope import Origin
from services.trainer_agent import decide
from services.trainer_agent.model import Attempt, AttemptState
from tests.unit.trainer_agent.attempts import (
    a_bundle,
    a_schedule,
    an_attempt,
    in_training,
    on_started,
    on_stopped,
    prepared,
    provisioned,
    reached,
    released,
    started,
    stopped,
    uploaded,
)


class TestWhoseClaimCounts:
    """Only a runner on a node that the provisioner gave to an attempt that the scheduler opened."""

    def test_none_does_before_both_have_said_so_in_either_order(self):
        steps = [
            lambda a: decide.on_job_scheduled(a, a_schedule(), Origin("request-1", "")),
            lambda a: decide.on_nodes_provisioned(a, provisioned(1, 0)),
        ]
        for first, second in permutations(steps):
            attempt = first(Attempt("ftjob-1", 1, "acme")).attempt
            assert not attempt.takes_claims
            attempt = second(attempt).attempt
            assert attempt.takes_claims
            assert attempt.nodes == ("node-0", "node-1")

    def test_an_ended_attempt_needs_no_nodes_to_drop_them(self):
        ended = an_attempt(nodes=0, state=AttemptState.CLOSED)
        assert ended.takes_claims
        assert replace(ended, nodes=None).takes_claims
        assert not replace(ended, order=None).takes_claims

    def test_an_attempt_that_got_no_nodes_drops_them(self):
        attempt = decide.on_provisioning_failed(an_attempt(nodes=1)).attempt
        assert attempt.nodes == ()
        assert on_started(attempt, started()).dropped
        assert on_stopped(attempt, stopped()).dropped

    def test_nodes_that_are_gone_before_they_were_reported_are_known_from_their_release(self):
        attempt = decide.on_nodes_released(replace(an_attempt(), nodes=None), released(0)).attempt
        assert attempt.nodes == ("node-0",)
        assert decide.on_nodes_released(an_attempt(), released()).attempt.nodes == ("node-0", "node-1")

    @pytest.mark.parametrize(
        "claim",
        [started(2), started(0, node_id="node-1"), started(0, tenant="evil")],
        ids=["a node beyond the gang", "another node's id", "another tenant"],
    )
    def test_a_start_by_another_is_dropped_and_unanswered(self, claim):
        attempt = an_attempt()
        decision = on_started(attempt, claim)
        assert (decision.attempt, decision.messages) == (attempt, ())
        assert decision.dropped

    @pytest.mark.parametrize(
        ("decision_of", "claim"),
        [
            (decide.on_bundle_uploaded, lambda who: uploaded(**who)),
            (decide.on_runner_stopped, lambda who: stopped(**who, outcome="completed", bundle=a_bundle())),
            (decide.on_step_reached, lambda who: reached(**who)),
            (decide.on_runner_prepared, lambda who: prepared(**who)),
        ],
        ids=["BundleUploaded", "RunnerStopped", "StepReached", "RunnerPrepared"],
    )
    @pytest.mark.parametrize("who", [{"node_index": 2}, {"tenant": "evil"}], ids=["node", "tenant"])
    def test_what_another_claims_later_is_dropped(self, decision_of, claim, who):
        attempt = in_training()
        decision = decision_of(attempt, claim(who), newest=1)
        assert (decision.attempt, decision.messages) == (attempt, ())
        assert decision.dropped
