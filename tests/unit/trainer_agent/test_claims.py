"""Whose claims count."""

from dataclasses import replace
from itertools import permutations, product

import pytest

from schemas.base import FailureClass
from schemas.envelope import Origin
from schemas.job import StopReason
from schemas.training import RunnerStarted, StopTraining
from services.trainer_agent import decide
from services.trainer_agent.model import Attempt, AttemptState, Claim, Stop
from shared.signatures import PrivateKey
from tests.node_keys import NODE_KEYS
from tests.unit.trainer_agent.attempts import (
    NOON,
    a_bundle,
    a_claim,
    a_schedule,
    an_attempt,
    given,
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


SIGNERS = [PrivateKey(str(index + 1) * 64) for index in range(3)]
"""Of nodes 0 and 1 of the attempt, and one of nobody."""
KEYS = tuple(signer.public_key for signer in SIGNERS[:2])
CLAIMS = {
    "RunnerStarted": started(0),
    "RunnerPrepared": prepared(),
    "StepReached": reached(),
    "BundleUploaded": uploaded(),
    "RunnerStopped": stopped(0, outcome="completed", bundle=a_bundle()),
}


class TestWhoseClaimIsProved:
    """With the key of the node that it names, which the provisioner gave to that node alone."""

    def judged(self, claim: Claim, **changes: object) -> decide.Decision:
        is_start = isinstance(claim.report, RunnerStarted)
        attempt = (an_attempt if is_start else in_training)(**({"public_keys": KEYS} | changes))
        decision = decide.on_claim(attempt, claim, now=NOON, newest=1)
        if decision.dropped:
            assert (decision.attempt, decision.messages) == (attempt, ()), "a dropped claim changes nothing"
        return decision

    @pytest.mark.parametrize("report", CLAIMS.values(), ids=CLAIMS.keys())
    def test_one_that_its_node_signed_counts(self, report):
        decision = self.judged(a_claim(report, signer=SIGNERS[0]))
        assert not decision.dropped
        assert decision == self.judged(a_claim(report, signer=SIGNERS[0]))
        assert decision.messages or decision.attempt.runner(0) or decision.attempt.last_step

    @pytest.mark.parametrize("signer", [None, SIGNERS[1], SIGNERS[2]], ids=["nobody", "node 1", "another"])
    @pytest.mark.parametrize("report", CLAIMS.values(), ids=CLAIMS.keys())
    def test_one_that_another_signed_is_dropped(self, report, signer):
        assert self.judged(a_claim(report, signer=signer)).dropped == "not signed by node 0 of the attempt"

    def test_a_start_of_a_stopping_or_old_attempt_is_not_answered_either(self):
        for changes in ({"stop": Stop(StopReason.CANCEL, NOON)}, {"state": AttemptState.CLOSED}):
            attempt = an_attempt(public_keys=KEYS, **changes)
            forged = decide.on_claim(attempt, a_claim(started(0)), now=NOON, newest=1)
            assert (forged.messages, bool(forged.dropped)) == ((), True)
            own = decide.on_claim(attempt, a_claim(started(0), signer=SIGNERS[0]), now=NOON, newest=1)
            assert [type(message) for message in own.messages] == [StopTraining]

    def test_a_node_beyond_the_gang_has_no_key(self):
        for changes, signer in product(({}, {"stop": Stop(StopReason.CANCEL, NOON)}), SIGNERS):
            claim = a_claim(started(2), signer=signer)
            assert self.judged(claim, **changes).dropped == "not signed by node 2 of the attempt"

    def test_what_was_signed_and_changed_since_is_dropped(self):
        own = a_claim(stopped(0), signer=SIGNERS[0])
        changed = replace(own.signed, content=own.signed.content.replace(b"stopped", b"Stopped"))
        assert self.judged(replace(own, signed=changed)).dropped

    def test_a_claim_of_an_older_attempt_is_signed_with_another_key(self):
        """The same report, come again under the newer number, or as it was."""
        older = NODE_KEYS.private("a-ftjob-1-e1", 0)
        keys = tuple(NODE_KEYS.public("a-ftjob-1-e2", index) for index in range(2))
        attempt = replace(an_attempt(public_keys=keys), number=2)
        for report in (started(0, attempt=2), started(0, attempt=1)):
            claim = a_claim(report, signer=PrivateKey(older))
            assert decide.on_claim(attempt, claim, now=NOON, newest=2).dropped

    def test_nodes_without_keys_are_asked_for_none(self):
        assert not self.judged(a_claim(started(0)), public_keys=None).dropped

    def test_what_an_older_release_kept_is_judged_without(self):
        assert not self.judged(Claim("e-1", started(0), None)).dropped

    def test_keys_come_with_the_nodes_by_their_index_and_all_or_none(self):
        both = tuple(node.model_copy(update={"public_key": KEYS[node.index]}) for node in given(1, 0))
        event = provisioned().model_copy(update={"nodes": both})
        assert decide.on_nodes_provisioned(an_attempt(), event).attempt.public_keys == KEYS
        one = event.model_copy(update={"nodes": (both[0], *given(0))})
        assert decide.on_nodes_provisioned(an_attempt(), one).attempt.public_keys is None
        assert decide.on_nodes_provisioned(an_attempt(), provisioned(0, 1)).attempt.public_keys is None

    def test_keys_are_known_from_the_release_where_the_nodes_are(self):
        [node] = (node.model_copy(update={"public_key": KEYS[0]}) for node in given(0))
        event = released().model_copy(update={"nodes": (node,)})
        unknown = replace(an_attempt(), nodes=None)
        assert decide.on_nodes_released(unknown, event).attempt.public_keys == KEYS[:1]
        assert decide.on_nodes_released(an_attempt(), event).attempt.public_keys is None


class TestWhereANodeIs:
    """Nodes of a gang meet where their cluster backend has them."""

    ADDRESSES = ("127.0.0.1", "10.0.0.2")

    def test_addresses_come_with_the_nodes_by_their_index_and_all_or_none(self):
        located = [node.model_copy(update={"address": self.ADDRESSES[node.index]}) for node in given(1, 0)]
        event = provisioned().model_copy(update={"nodes": tuple(located)})
        assert decide.on_nodes_provisioned(an_attempt(), event).attempt.addresses == self.ADDRESSES
        some = event.model_copy(update={"nodes": (located[0], *given(0))})
        assert decide.on_nodes_provisioned(an_attempt(), some).attempt.addresses is None

    def test_a_start_elsewhere_fails_the_attempt_and_is_recorded(self):
        attempt = an_attempt(addresses=self.ADDRESSES)
        assert not on_started(attempt, started(0)).dropped
        elsewhere = on_started(attempt, started(1, host="10.6.6.6"))
        sentence = "node node-1 says that it is reached at 10.6.6.6, its cluster backend has 10.0.0.2"
        assert elsewhere.dropped == sentence
        [failed] = elsewhere.messages
        assert (failed.failure_class, failed.message) == (FailureClass.INFRA, sentence)
        assert elsewhere.attempt.runner(1) is None

    def test_a_node_alone_is_asked_for_no_address(self):
        alone = an_attempt(nodes=1, addresses=("10.0.0.2",))
        assert not on_started(alone, started(0)).dropped

    def test_what_the_backend_does_not_say_the_claim_does(self):
        decision = on_started(on_started(an_attempt(), started(0)).attempt, started(1, host="10.6.6.6"))
        [start, _] = decision.messages
        assert [member.host for member in start.members] == ["127.0.0.1", "10.6.6.6"]
