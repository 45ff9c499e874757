"""What a runner is answered that asks what its attempt shall do."""

from datetime import timedelta

import pytest

from schemas.job import StopReason
from schemas.training import StartTraining
from services.trainer_agent import decide
from services.trainer_agent.decide import Directives
from services.trainer_agent.model import Attempt, AttemptState, Stop
from tests.unit.trainer_agent.attempts import NOON, an_attempt, in_training, on_started, started, stopping

IN_A_WHILE = NOON + timedelta(seconds=30)
LATER = NOON + timedelta(hours=1)
STOP = Stop(StopReason.PAUSE, IN_A_WHILE)


def answer(attempt: Attempt, node_index: int = 0, *, report_id: str = "", newest: int = 1) -> Directives:
    known = report_id or f"started-{node_index}"
    return decide.directives_for(attempt, node_index, report_id=known, now=LATER, newest=newest)


def test_a_gang_that_is_not_complete_does_nothing():
    assert answer(an_attempt(started=1)) == Directives()


def test_each_runner_that_passed_the_barrier_is_given_what_its_record_says():
    decision = on_started(an_attempt(started=1), started(1))
    [record] = [message for message in decision.messages if isinstance(message, StartTraining)]
    assert [answer(decision.attempt, index) for index in (0, 1)] == [Directives(start=record)] * 2


@pytest.mark.parametrize("node_index", [0, 1, 7])
def test_a_runner_that_did_not_pass_it_starts_nothing(node_index):
    assert answer(in_training(), node_index, report_id="on an empty disk") == Directives()


def test_a_stop_is_answered_as_it_is_now_and_its_record_says_the_same():
    decision = decide.on_job_stopping(in_training(), stopping())
    assert answer(decision.attempt).stop == decision.messages[0]
    earlier = decide.on_job_stopping(decision.attempt, stopping(seconds=5))
    assert answer(earlier.attempt).stop == earlier.messages[0]


def test_a_stop_is_for_whoever_has_the_nodes_key():
    assert answer(an_attempt(stop=STOP), report_id="not heard of yet").stop.deadline == IN_A_WHILE
    stopping_one = answer(in_training(stop=STOP))
    assert (stopping_one.start is None, stopping_one.stop.reason) == (False, StopReason.PAUSE)


@pytest.mark.parametrize(
    ("attempt", "newest"),
    [(in_training(state=AttemptState.CLOSED), 1), (an_attempt(), 2), (an_attempt(nodes_released=True), 1)],
    ids=["ended", "superseded", "released"],
)
def test_a_runner_that_comes_too_late_is_sent_away_at_once(attempt, newest):
    late = answer(attempt, report_id="late", newest=newest)
    assert late.start is None
    assert (late.stop.reason, late.stop.deadline) == (StopReason.FAILURE, LATER)


def test_a_runner_that_ends_with_its_attempt_is_left_to_report():
    assert answer(in_training(state=AttemptState.CLOSED)) == Directives()
