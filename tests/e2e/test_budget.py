"""A job on real nodes that would train for long ends before its budget is passed, and its model is kept."""

import json

import pytest

from schemas.cost import BudgetReached
from tests.chaos.scale import Scale, scale
from tests.e2e.conftest import Platform

pytestmark = [
    pytest.mark.stack,
    pytest.mark.torch,
    pytest.mark.skipif(scale() is Scale.CHANGE, reason="the whole platform once more: at night"),
]

MAX_COST = "0.001"
"""36 seconds of a node of ten cents an hour, of which 10 are kept for the stop."""


async def test_a_job_ends_before_its_budget_is_passed_and_keeps_its_model(platform: Platform):
    job_id = await platform.submit(
        suffix="budget",
        recipe={"num_epochs": 100},
        resources={"capacity_type": "spot", "grace_seconds": 5},
        max_cost=MAX_COST,
    )
    job = await platform.finished(job_id)
    job = await platform.until(job_id, lambda job: float(job["retune"]["cost_usd"]) > 0, "the end")
    events = platform.retune("jobs", "events", job_id)
    assert job["status"] == "cancelled", events
    assert job["error"]["message"].startswith("its budget is spent; its checkpoint of step"), events
    assert 0.5 * float(MAX_COST) < float(job["retune"]["cost_usd"]) <= float(MAX_COST), events
    facts = [each.message for each in await platform.events(job_id)]
    assert [fact.attempt for fact in facts if isinstance(fact, BudgetReached)] == [1]
    versions = json.loads(platform.retune("--json", "models", "list"))
    assert any(version["id"].startswith("ft:tiny-llama:demo:budget:") for version in versions), versions
