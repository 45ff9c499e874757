import pytest

from schemas.base import FailureClass
from services.scheduler.model import (
    ALLOWED,
    REQUEUE_BUDGET,
    TERMINAL,
    IllegalTransition,
    JobState,
)
from tests.builders import a_bundle, a_job

LISTED = [(state, target) for state, moves in ALLOWED.items() for target in sorted(moves)]
UNLISTED = [(s, t) for s in JobState for t in JobState if t not in ALLOWED[s]]


def test_every_state_is_in_the_table():
    assert set(ALLOWED) == set(JobState)


@pytest.mark.parametrize(("state", "target"), LISTED)
def test_every_listed_move_is_made(state, target):
    assert a_job(state).to(target).state is target


@pytest.mark.parametrize(("state", "target"), UNLISTED)
def test_every_unlisted_move_is_refused(state, target):
    with pytest.raises(IllegalTransition, match=f"job ftjob-1: {state} -> {target}, allowed: "):
        a_job(state).to(target)


def test_three_states_are_terminal():
    assert {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED} == TERMINAL


@pytest.mark.parametrize(
    ("failure_class", "budget"),
    [
        ("preempted", None),
        ("infra", 5),
        ("internal", 2),
        ("numeric", 0),
        ("oom", 0),
        ("user", 0),
        ("cancelled", 0),
    ],
)
def test_each_failure_class_has_its_budget(failure_class, budget):
    assert REQUEUE_BUDGET[FailureClass(failure_class)] == budget


def test_the_failure_classes_are_closed():
    assert set(REQUEUE_BUDGET) == set(FailureClass)


def test_the_resume_point_is_the_greatest_attempt_then_step():
    bundles = [a_bundle(120, attempt=1), a_bundle(110, attempt=2), a_bundle(50, attempt=2)]
    assert a_job(verified=frozenset(bundles)).resume == a_bundle(110, attempt=2)
    assert a_job().resume is None
