from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from schemas.base import FailureClass
from schemas.job import JobCancelled, JobFailed, JobPaused, JobRequeued, PauseReason
from schemas.node import AllocatedNode
from services.tracker.decide.cost import Ending, cost_of, device_seconds, ending_of, node_seconds
from tests.builders import TENANT

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def a_node(price: str, *, seconds: float | None) -> AllocatedNode:
    released = None if seconds is None else NOON + timedelta(seconds=seconds)
    return AllocatedNode(
        node_id="n", index=0, price_per_hour=Decimal(price), allocated_at=NOON, released_at=released
    )


JOB = {"job_id": "ftjob-1", "tenant": TENANT, "attempt": 1}


@pytest.mark.parametrize(
    ("failure_class", "is_charged"),
    [
        ("preempted", False),
        ("infra", False),
        ("internal", False),
        ("numeric", True),
        ("resized", True),
        ("oom", True),
        ("user", True),
        ("cancelled", True),
    ],
)
def test_the_tenant_pays_for_what_is_the_tenants_own_fault(failure_class, is_charged):
    failure = FailureClass(failure_class)
    requeued = JobRequeued(**JOB, failure_class=failure, resume=None, not_before=NOON, message="")
    failed = JobFailed(**JOB, failure_class=failure, code="x", message="")
    assert ending_of(requeued) == ending_of(failed) == Ending(failure, is_charged)


def test_the_tenant_pays_for_what_was_asked_for():
    assert ending_of(JobPaused(**JOB, reason=PauseReason.USER, resume=None)) == Ending(None, is_charged=True)
    cancelled = JobCancelled(**JOB, reason="user", artifact=None)
    assert ending_of(cancelled) == Ending(FailureClass.CANCELLED, is_charged=True)


def test_each_node_is_charged_for_its_own_time_and_price():
    nodes = [a_node("0.10", seconds=1800), a_node("0.30", seconds=3600)]
    assert cost_of(nodes, until=NOON) == Decimal("0.350000")
    assert node_seconds(nodes, until=NOON) == 5400


def test_a_node_that_is_still_held_is_charged_until_now():
    assert cost_of([a_node("3.60", seconds=None)], until=NOON + timedelta(seconds=10)) == Decimal("0.010000")


def test_nodes_that_are_still_held_count_until_now():
    nodes = [a_node("1", seconds=None), a_node("1", seconds=5)]
    assert node_seconds(nodes, until=NOON + timedelta(seconds=10)) == 15


def test_each_device_counts_and_a_node_without_names_has_one():
    four = a_node("1", seconds=5).model_copy(update={"devices": (0, 1, 2, 3)})
    assert device_seconds([four, a_node("1", seconds=None)], until=NOON + timedelta(seconds=10)) == 4 * 5 + 10


def test_a_clock_that_went_back_never_pays_money_out():
    assert cost_of([a_node("1", seconds=-5)], until=NOON) == 0
    assert cost_of([], until=NOON) == 0
