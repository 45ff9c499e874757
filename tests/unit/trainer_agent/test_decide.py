"""The control side's decisions: each test is a row of the specification."""

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import permutations

import pytest

from schemas.artifacts import ResumeCertificate
from schemas.base import BestBundle, FailureClass, StartFrom
from schemas.job import JobStage, StopReason
from schemas.training import (
    BundleKind,
    CheckpointWritten,
    StartTraining,
    StopTraining,
    TrainingCompleted,
    TrainingFailed,
    TrainingPrepared,
    TrainingResumed,
    TrainingStarted,
    TrainingStopped,
)
from services.trainer_agent import decide
from services.trainer_agent.decide import SILENCE, Decision, Purpose
from services.trainer_agent.model import Attempt, AttemptState, Stop
from tests.moves import moves_of
from tests.unit.trainer_agent.attempts import (
    LONG_AGO,
    NOON,
    SECOND,
    a_bundle,
    a_claim,
    a_runner,
    a_schedule,
    an_attempt,
    in_training,
    on_started,
    on_stopped,
    only,
    prepared,
    reached,
    released,
    started,
    stopped,
    stopping,
    types,
    uploaded,
)


@pytest.mark.parametrize(
    ("report", "decided"),
    [
        (prepared(), decide.on_runner_prepared),
        (reached(), decide.on_step_reached),
        (uploaded(), decide.on_bundle_uploaded),
        (stopped(), decide.on_runner_stopped),
    ],
    ids=lambda each: getattr(each, "type", ""),
)
def test_a_claim_is_decided_by_its_report(report, decided):
    for attempt, newest in ((in_training(), 1), (in_training(), 2)):
        expected = decided(attempt, report, newest=newest)
        assert decide.on_claim(attempt, a_claim(report), now=NOON, newest=newest) == expected


def test_a_runner_is_known_by_its_start():
    decision = decide.on_claim(an_attempt(), a_claim(started(1)), now=NOON, newest=1)
    assert decision == on_started(an_attempt(), started(1), report_id="e-1")
    runner = decision.attempt.runner(1)
    assert (runner.node_id, runner.host, runner.port, runner.report_id, runner.seen_at) == (
        "node-1",
        "127.0.0.1",
        4001,
        "e-1",
        NOON,
    )


class TestGangBarrier:
    @pytest.mark.parametrize("order", list(permutations([0, 1, 2])))
    def test_starts_once_and_only_when_all_runners_are_here(self, order):
        attempt, sent = an_attempt(nodes=3), []
        for number, index in enumerate(order, start=1):
            decision = on_started(attempt, started(index))
            attempt = decision.attempt
            sent += decision.messages
            assert bool(sent) == (number == len(order))
        assert [type(message) for message in sent] == [StartTraining, TrainingStarted]
        assert attempt.state is AttemptState.TRAINING

    def test_members_are_in_rank_order(self):
        attempt = on_started(an_attempt(), started(1)).attempt
        start = only(on_started(attempt, started(0)), StartTraining)
        assert [member.node_index for member in start.members] == [0, 1]
        assert [member.port for member in start.members] == [4000, 4001]

    def test_the_order_carries_what_was_scheduled(self):
        start = only(on_started(an_attempt(nodes=1), started()), StartTraining)
        schedule = a_schedule(nodes=1)
        assert (start.recipe, start.resume, start.dataset) == (schedule.spec.recipe, None, schedule.dataset)
        assert (start.nodes, start.devices_per_node, start.attempt) == (1, 1, 1)

    def test_a_later_stage_starts_from_the_one_before_and_counts_on(self):
        start = StartFrom(name="stage 1", job_id="ftjob-1", bundle=a_bundle())
        stage = JobStage(number=2, num_stages=2, first_attempt=2, steps_before=7, start=start)
        order = a_schedule(nodes=1).model_copy(update={"stage": stage})
        directive = only(on_started(an_attempt(nodes=1, order=order), started()), StartTraining)
        assert (directive.start_from, directive.steps_before) == (start, 7)

    def test_a_runner_that_starts_again_before_the_barrier_replaces_itself(self):
        attempt = on_started(an_attempt(), started(0)).attempt
        again = started(0).model_copy(update={"port": 5000})
        attempt = on_started(attempt, again, report_id="again").attempt
        start = only(on_started(attempt, started(1)), StartTraining)
        assert start.members[0].port == 5000

    def test_a_stopped_runner_does_not_count(self):
        attempt = an_attempt(runners=(a_runner(0, has_stopped=True),), failure=None)
        assert types(on_started(attempt, started(1))) == []

    def test_a_resumed_attempt_begins_with_its_bundle_and_on_the_device_of_its_pool(self):
        order = a_schedule(nodes=1).model_copy(update={"resume": a_bundle(), "device": "cuda"})
        directive = only(on_started(an_attempt(nodes=1, order=order), started()), StartTraining)
        assert (directive.resume, directive.device) == (a_bundle(), "cuda")

    def test_nothing_starts_after_a_failure(self):
        attempt = an_attempt(started=1, failure=FailureClass.INFRA)
        decision = on_started(attempt, started(1))
        assert decision == Decision(attempt.with_runner(a_runner(1)))

    def test_a_report_that_comes_again_in_training_changes_nothing(self):
        attempt = on_started(an_attempt(nodes=1), started()).attempt
        assert attempt.state is AttemptState.TRAINING
        assert on_started(attempt, started()) == Decision(attempt)

    def test_a_runner_that_starts_again_in_training_fails_the_attempt(self):
        decision = on_started(in_training(), started(1), report_id="again")
        assert only(decision, TrainingFailed).failure_class is FailureClass.INFRA
        assert decision.dropped == "runner 1 started again after training began"

    def test_the_first_runner_arms_the_listening_timer(self):
        first = on_started(an_attempt(), started(0))
        assert first.listen_until == NOON + SILENCE
        assert on_started(first.attempt, started(1)).listen_until is None


class TestStop:
    def test_is_relayed_with_reason_and_deadline(self):
        directive = only(decide.on_job_stopping(in_training(), stopping()), StopTraining)
        assert (directive.reason, directive.deadline) == (StopReason.CANCEL, NOON + 30 * SECOND)

    def test_is_relayed_again_only_if_it_changed(self):
        attempt = decide.on_job_stopping(in_training(), stopping()).attempt
        assert decide.on_job_stopping(attempt, stopping()) == Decision(attempt)
        earlier = only(decide.on_job_stopping(attempt, stopping(seconds=5)), StopTraining)
        assert earlier.deadline == NOON + 5 * SECOND

    @pytest.mark.parametrize(
        ("attempt", "newest", "reason"),
        [
            (an_attempt(stop=Stop(StopReason.PAUSE, NOON + 9 * SECOND)), 1, StopReason.PAUSE),
            (in_training(state=AttemptState.CLOSED), 1, StopReason.FAILURE),
            (an_attempt(), 2, StopReason.FAILURE),
        ],
        ids=["stopping", "ended", "superseded"],
    )
    def test_answers_a_late_runner(self, attempt, newest, reason):
        decision = on_started(attempt, started(1), newest=newest)
        assert only(decision, StopTraining).reason is reason
        assert decision.dropped
        assert decision.attempt == attempt

    @pytest.mark.parametrize("stop_first", [True, False])
    def test_before_the_barrier_nothing_starts_in_either_order(self, stop_first):
        attempt, sent = an_attempt(nodes=2, started=1), []
        steps = [lambda a: decide.on_job_stopping(a, stopping()), lambda a: on_started(a, started(1))]
        for step in steps if stop_first else reversed(steps):
            decision = step(attempt)
            attempt = decision.attempt
            sent += decision.messages
        starts = [message for message in sent if isinstance(message, StartTraining)]
        assert len(starts) == (0 if stop_first else 1)
        assert any(isinstance(message, StopTraining) for message in sent)


class TestClaims:
    def test_an_uploaded_bundle_is_a_written_checkpoint(self):
        fact = only(decide.on_bundle_uploaded(in_training(), uploaded(), newest=1), CheckpointWritten)
        assert (fact.bundle, fact.kind, fact.metrics) == (
            a_bundle(),
            BundleKind.PERIODIC,
            {"train_loss": 1.0},
        )

    @pytest.mark.parametrize(("last_step", "furthest"), [(3, 7), (9, 9)])
    def test_an_uploaded_bundle_is_the_last_one_and_its_step_reached(self, last_step, furthest):
        attempt = in_training(last_step=last_step)
        decision = decide.on_bundle_uploaded(attempt, uploaded(), newest=1)
        assert decision.attempt == replace(attempt, last_step=furthest, last_bundle=a_bundle())

    def test_what_a_runner_prepared_is_a_fact(self):
        claim = prepared()
        decision = decide.on_runner_prepared(in_training(), claim, newest=1)
        assert only(decision, TrainingPrepared).preparation == claim.preparation
        assert decision.attempt == in_training()

    def test_a_certificate_is_a_resumed_training(self):
        certificate = ResumeCertificate(exact=True, step=4, reason="equal")
        claim = reached(step=5, certificate=certificate, packing="proved")
        decision = decide.on_step_reached(in_training(), claim, newest=1)
        assert only(decision, TrainingResumed).certificate == certificate
        assert decision.attempt == in_training(last_step=5)

    def test_a_first_step_without_a_certificate_is_no_fact(self):
        decision = decide.on_step_reached(in_training(), reached(), newest=1)
        assert (decision.messages, decision.attempt.last_step) == ((), 1)

    @pytest.mark.parametrize("void", ["older", "closed"])
    @pytest.mark.parametrize(
        ("decision_of", "claim"),
        [
            (decide.on_bundle_uploaded, uploaded()),
            (decide.on_runner_stopped, stopped(outcome="completed", bundle=a_bundle())),
            (decide.on_step_reached, reached()),
            (decide.on_runner_prepared, prepared()),
        ],
        ids=["BundleUploaded", "RunnerStopped", "StepReached", "RunnerPrepared"],
    )
    def test_of_an_old_or_ended_attempt_are_dropped_with_a_reason(self, decision_of, claim, void):
        attempt = in_training(state=AttemptState.CLOSED) if void == "closed" else in_training()
        decision = decision_of(attempt, claim, newest=2 if void == "older" else 1)
        assert decision.messages == ()
        assert decision.attempt == attempt
        assert decision.dropped

    def test_a_bundle_names_the_best_one(self):
        best = BestBundle(bundle=a_bundle(), valid_loss=1.5)
        decision = decide.on_bundle_uploaded(in_training(), uploaded(best=best), newest=1)
        assert only(decision, CheckpointWritten).best == best

    def test_a_bundle_of_another_attempt_is_dropped(self):
        claim = uploaded(bundle=a_bundle(attempt=3))
        dropped = Decision(in_training(), dropped="a bundle of attempt 3 claimed by attempt 1")
        assert decide.on_bundle_uploaded(in_training(), claim, newest=1) == dropped


class TestEndOfAnAttempt:
    def test_runner_0_completed(self):
        decision = on_stopped(in_training(), stopped(outcome="completed", bundle=a_bundle()))
        assert types(decision) == [TrainingCompleted]
        assert decision.attempt.state is AttemptState.CLOSED

    def test_another_runner_that_has_stopped_is_waited_for_no_more(self):
        attempt = on_stopped(in_training(), stopped(1)).attempt
        assert attempt.last_step == 7
        assert [attempt.runner(index).has_stopped for index in (0, 1)] == [False, True]
        assert on_stopped(in_training(runners=(a_runner(0),)), stopped(1)).attempt.runner(1) is None

    def test_runner_0_says_why_it_completed_early(self):
        claim = stopped(outcome="completed", bundle=a_bundle(), message="ended early at step 7 of 40")
        [fact] = on_stopped(in_training(), claim).messages
        assert (fact.message, fact.last_step) == (claim.message, 7)

    def test_runner_0_completed_without_a_bundle_is_our_fault(self):
        decision = on_stopped(in_training(), stopped(outcome="completed"))
        assert types(decision) == [TrainingFailed, TrainingStopped]
        assert decision.attempt.state is AttemptState.CLOSED
        assert only(decision, TrainingFailed).failure_class is FailureClass.INTERNAL

    @pytest.mark.parametrize(
        ("stop", "reason"), [(None, "unasked"), (Stop(StopReason.PAUSE, NOON), "pause")], ids=str
    )
    def test_runner_0_stopped(self, stop, reason):
        fact = only(on_stopped(in_training(stop=stop), stopped(bundle=a_bundle())), TrainingStopped)
        assert (fact.reason, fact.last_step, fact.bundle) == (reason, 7, a_bundle())

    def test_runner_0_failed(self):
        claim = stopped(outcome="failed", failure_class=FailureClass.OOM, message="no room")
        decision = on_stopped(in_training(), claim)
        assert types(decision) == [TrainingFailed, TrainingStopped]
        failed = only(decision, TrainingFailed)
        assert (failed.failure_class, failed.message) == (FailureClass.OOM, "no room")
        assert only(decision, TrainingStopped).reason == "failure"

    @pytest.mark.parametrize("node_index", [0, 1])
    def test_what_a_machine_did_names_its_node(self, node_index):
        claim = stopped(node_index, outcome="failed", failure_class=FailureClass.INFRA, message="no device")
        attempt = in_training()
        failed = only(on_stopped(attempt, claim), TrainingFailed)
        node_id = attempt.runner(node_index).node_id
        assert (failed.node_id, failed.message) == (node_id, f"node {node_id}: no device")

    @pytest.mark.parametrize(("nodes", "named"), [(("a", "b"), False), (("a",), True)])
    def test_who_does_not_hear_its_peer_is_named_where_no_other_node_is(self, nodes, named):
        claim = stopped(
            outcome="failed", failure_class=FailureClass.INFRA, message="reset", lost_connection=True
        )
        attempt = replace(in_training(), nodes=nodes)
        failed = only(on_stopped(attempt, claim), TrainingFailed)
        node_id = attempt.runner(0).node_id
        assert failed.message == f"node {node_id}: reset"
        assert failed.node_id == (node_id if named else None)

    def test_of_a_runner_that_never_reported_no_node_is_named(self):
        attempt = in_training(runners=(a_runner(0),), last_step=9)
        claim = stopped(1, outcome="failed", failure_class=FailureClass.INFRA, message="no device")
        failed = only(on_stopped(attempt, claim), TrainingFailed)
        assert (failed.node_id, failed.message, failed.last_step) == (None, "no device", 9)

    def test_a_failure_is_reported_once(self):
        decision = on_stopped(
            in_training(failure=FailureClass.INFRA), stopped(outcome="failed", failure_class=FailureClass.OOM)
        )
        assert types(decision) == [TrainingStopped]

    def test_another_runner_failed_while_runner_0_continues(self):
        claim = stopped(1, outcome="failed", failure_class=FailureClass.NUMERIC)
        decision = on_stopped(in_training(), claim)
        assert types(decision) == [TrainingFailed]
        assert decision.attempt.is_open

    def test_another_runner_stopped_with_the_gang(self):
        decision = on_stopped(in_training(), stopped(1))
        assert (decision.messages, decision.attempt.is_open) == ((), True)

    def test_another_runner_left_before_the_barrier(self):
        decision = on_stopped(an_attempt(started=2, nodes=3), stopped(1))
        assert only(decision, TrainingFailed).failure_class is FailureClass.PREEMPTED

    def test_released_nodes_are_read_out_before_the_end(self):
        decision = decide.on_nodes_released(in_training(), released(0, 1))
        assert decision == Decision(in_training(nodes_released=True), read_reports=Purpose.RELEASE)

    def test_released_nodes_of_an_ended_attempt_need_nothing(self):
        decision = decide.on_nodes_released(in_training(state=AttemptState.CLOSED), released(0, 1))
        assert decision.read_reports is None

    @pytest.mark.parametrize(
        ("changes", "facts"),
        [
            ({}, [TrainingFailed, TrainingStopped]),
            ({"failure": FailureClass.USER}, [TrainingStopped]),
            ({"stop": Stop(StopReason.CANCEL, NOON)}, [TrainingStopped]),
            ({"state": AttemptState.CLOSED}, []),
        ],
        ids=["unasked", "failure told", "asked", "ended"],
    )
    def test_without_a_word_of_runner_0(self, changes, facts):
        attempt = in_training(nodes_released=True, **changes)
        decision = decide.on_reports_read(attempt, Purpose.RELEASE, now=NOON, listening_since=LONG_AGO)
        assert types(decision) == facts
        assert not decision.attempt.is_open

    @pytest.mark.parametrize("word_first", [True, False])
    def test_has_one_last_fact_whichever_comes_first(self, word_first):
        attempt, sent = in_training(nodes_released=True), []
        steps = [
            lambda a: on_stopped(a, stopped(outcome="completed", bundle=a_bundle())),
            lambda a: decide.on_reports_read(a, Purpose.RELEASE, now=NOON, listening_since=LONG_AGO),
        ]
        for step in steps if word_first else reversed(steps):
            decision = step(attempt)
            attempt = decision.attempt
            sent += decision.messages
        last = [message for message in sent if isinstance(message, TrainingStopped | TrainingCompleted)]
        assert len(last) == 1
        assert sent[-1] is last[0]

    def test_a_newer_attempt_ends_an_open_one(self):
        assert types(decide.on_superseded(in_training())) == [TrainingFailed, TrainingStopped]
        closed = in_training(state=AttemptState.CLOSED)
        assert decide.on_superseded(closed) == Decision(closed)


class TestSilence:
    def silent(self, seconds: float, **changes: object) -> Attempt:
        seen = NOON - timedelta(seconds=seconds)
        return in_training(runners=(a_runner(0, seen_at=NOON), a_runner(1, seen_at=seen)), **changes)

    def due(self, attempt: Attempt, *, listening_since: datetime = LONG_AGO) -> Decision:
        return decide.on_silence_due(attempt, now=NOON, listening_since=listening_since)

    def read(self, attempt: Attempt, *, listening_since: datetime = LONG_AGO) -> Decision:
        return decide.on_reports_read(attempt, Purpose.SILENCE, now=NOON, listening_since=listening_since)

    def test_is_believed_only_after_the_reports_are_read(self):
        attempt = self.silent(31)
        assert self.due(attempt) == Decision(attempt, read_reports=Purpose.SILENCE)

    def test_of_one_runner_fails_the_attempt(self):
        decision = self.read(self.silent(31))
        failed = only(decision, TrainingFailed)
        assert (failed.failure_class, failed.message) == (
            FailureClass.INFRA,
            "no report from runner 1 for 30 s",
        )
        assert decision.attempt.is_open

    def test_a_report_that_was_read_meanwhile_listens_on(self):
        attempt = self.silent(10)
        assert self.read(attempt) == Decision(attempt, listen_until=NOON + 20 * SECOND)

    def test_before_its_time_listens_on(self):
        attempt = self.silent(29)
        assert self.due(attempt) == Decision(attempt, listen_until=NOON + SECOND)
        assert self.due(self.silent(30)).read_reports is Purpose.SILENCE
        assert only(self.read(self.silent(30)), TrainingFailed).message == "no report from runner 1 for 30 s"

    def test_counts_from_our_own_start(self):
        started_at = NOON - 10 * SECOND
        assert self.due(self.silent(300), listening_since=started_at).listen_until == started_at + SILENCE
        assert self.read(self.silent(300), listening_since=started_at).messages == ()

    @pytest.mark.parametrize(
        "changes",
        [
            {"stop": Stop(StopReason.CANCEL, NOON)},
            {"failure": FailureClass.INFRA},
            {"nodes_released": True},
            {"state": AttemptState.CLOSED},
        ],
        ids=["stopping", "failed", "released", "ended"],
    )
    def test_does_not_matter_any_more(self, changes):
        attempt = self.silent(300, **changes)
        assert self.due(attempt) == Decision(attempt)
        assert self.read(attempt).messages == ()

    def test_of_a_stopped_runner_does_not_matter(self):
        gone = a_runner(1, seen_at=LONG_AGO, has_stopped=True)
        decision = self.due(in_training(runners=(a_runner(0), gone)))
        assert decision.listen_until == NOON + SILENCE
        attempt = in_training(runners=(gone,))
        assert self.due(attempt) == Decision(attempt), "all have stopped"


def test_an_attempt_moves_so_and_no_other_way():
    assert moves_of(AttemptState, lambda state: an_attempt(state=state), field="state") == {
        "gathering": {"training", "closed"},
        "training": {"closed"},
        "closed": set(),
    }
