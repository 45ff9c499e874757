import pytest

from schemas.base import FailureClass
from schemas.lifecycle import TERMINAL, JobState
from services.scheduler.model import REQUEUE_BUDGET
from shared.transitions import IllegalTransition
from tests.builders import a_bundle, a_job
from tests.moves import moves_of


def test_a_job_moves_so_and_no_other_way():
    assert moves_of(JobState, a_job, field="state") == {
        "validating": {"queued", "paused", "failed", "cancelled"},
        "queued": {"provisioning", "paused", "failed", "cancelled"},
        "provisioning": {"running", "stopping", "queued", "failed"},
        "running": {"stopping", "evaluating", "queued"},
        "stopping": {"evaluating", "paused", "queued", "failed", "cancelled"},
        "paused": {"validating", "queued", "failed", "cancelled"},
        "evaluating": {"succeeded", "cancelled"},
        "succeeded": set(),
        "failed": set(),
        "cancelled": set(),
    }


def test_a_refused_move_says_which_would_have_been_allowed():
    with pytest.raises(IllegalTransition, match="job ftjob-1: running -> paused, allowed: "):
        a_job(JobState.RUNNING).to(JobState.PAUSED)


def test_three_states_are_terminal():
    assert {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED} == TERMINAL


@pytest.mark.parametrize(
    ("failure_class", "budget"),
    [
        ("preempted", None),
        ("infra", 5),
        ("platform", None),
        ("internal", 2),
        ("numeric", 0),
        ("oom", 1),
        ("user", 0),
        ("cancelled", 0),
        ("resized", None),
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
