"""An attempt ends before its job's budget is passed, and not long before."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.cost import BudgetReached
from services.tracker.decide import budget
from services.tracker.decide.budget import LOOK_EVERY, Burn, Month
from services.tracker.decide.cost import price_of
from tests.builders import TENANT

NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)
BURN = Burn(
    job_id="ftjob-1",
    tenant=TENANT,
    attempt=2,
    charged=Decimal("1.00"),
    price_per_hour=Decimal("36.00"),
    began_at=NOON,
    max_cost=Decimal("3.00"),
    grace_seconds=30,
)
"""A cent a second, of which 35 seconds are kept for the stop: it ends 165 seconds after it began."""


def reached(burn: Burn, *, now: datetime) -> BudgetReached | None:
    return next(iter(budget.reached([burn], [], now=now)), None)


@pytest.mark.parametrize(
    ("seconds", "changes", "is_reached"),
    [
        (164, {}, False),
        (165, {}, True),
        (0, {"charged": Decimal("2.65")}, True),
        (1_000, {"price_per_hour": Decimal(0)}, False),
        (-60, {}, False),
        (1_000, {"max_cost": None}, False),
        (1_000, {"is_ending": True}, False),
        (184, {"grace_seconds": 10}, False),
        (185, {"grace_seconds": 10}, True),
    ],
)
def test_what_is_spent_and_the_stop_are_compared_with_the_budget(seconds, changes, is_reached):
    fact = reached(replace(BURN, **changes), now=NOON + timedelta(seconds=seconds))
    assert (fact is not None) == is_reached


def test_the_fact_has_both_sums():
    fact = reached(BURN, now=NOON + timedelta(seconds=170))
    assert (fact.job_id, fact.attempt, fact.limit, fact.spent) == (
        "ftjob-1",
        2,
        Decimal("3.00"),
        Decimal("2.70"),
    )
    assert fact.message == ("2.7000 of 3 US dollars are spent, and saving a checkpoint may take 0.3500 more")


def spent(burn: Burn, now: datetime) -> Decimal:
    return burn.charged + burn.cost(now)


@given(
    cents_per_hour=st.integers(1, 100_000),
    charged=st.integers(0, 500),
    limit=st.integers(1, 1_000),
    grace=st.floats(1, 600),
    used=st.floats(0, 1),
    first_look=st.floats(0, 1),
)
def test_a_job_never_costs_more_than_its_budget_and_one_stop(
    cents_per_hour: int, charged: int, limit: int, grace: float, used: float, first_look: float
):
    """Looks every five seconds, and a stop that takes any part of its grace. Only where an attempt could not even
    begin and stop within what is left does the job cost more, by that.
    """
    burn = replace(
        BURN,
        charged=Decimal(charged) / 100,
        price_per_hour=Decimal(cents_per_hour) / 100,
        max_cost=Decimal(limit) / 100,
        grace_seconds=grace,
    )
    allowed = max(burn.max_cost, burn.charged + burn.reserve)
    hours = float((allowed - burn.charged) / burn.price_per_hour)
    # The last look before the budget alone would be spent, at the phase that these looks have.
    before = max(timedelta(0), timedelta(hours=hours) - timedelta(minutes=11))
    seen_at = NOON + (before // LOOK_EVERY) * LOOK_EVERY + first_look * LOOK_EVERY
    if reached(burn, now=seen_at) is None:
        while reached(burn, now=seen_at) is None:
            seen_at += LOOK_EVERY
        idle = burn.max_cost - spent(burn, seen_at) - burn.reserve
        assert idle > -price_of(burn.price_per_hour, LOOK_EVERY) - Decimal("0.00001")
    ended_at = seen_at + used * timedelta(seconds=grace)
    if seen_at > NOON + LOOK_EVERY:
        assert spent(burn, ended_at) <= burn.max_cost + Decimal("0.00001")
    assert spent(burn, ended_at) <= allowed + Decimal("0.00001")


def of_month(limit: str, *burns: Burn, charged: str = "1.00", seconds: float = 100) -> list[tuple[str, str]]:
    months = [Month(TENANT, Decimal(limit), Decimal(charged)), Month("other", Decimal(0), Decimal(9))]
    facts = budget.reached(burns, months, now=NOON + timedelta(seconds=seconds))
    return [(fact.job_id, fact.budget) for fact in facts]


def test_all_that_runs_shares_the_month_of_its_tenant():
    """A cent a second each: two of them have cost 2.00 after 100 seconds, and 0.70 are kept for their stops."""
    first = replace(BURN, max_cost=None, charged=Decimal("50.00"))
    second = replace(first, job_id="ftjob-2")
    assert of_month("3.71", first, second) == []
    assert of_month("3.70", first, second) == [("ftjob-1", "month"), ("ftjob-2", "month")]
    assert of_month("3.70", first) == []
    # One that is ending costs until it has ended, and is not ended again.
    assert of_month("3.70", first, replace(second, is_ending=True)) == [("ftjob-1", "month")]
    # Its own budget is named where both are reached.
    assert of_month("3.70", first, replace(second, max_cost=Decimal("50.00"))) == [
        ("ftjob-2", "job"),
        ("ftjob-1", "month"),
    ]


def test_a_month_begins_at_midnight_of_utc():
    late = datetime(2027, 3, 17, 13, 14, 15, 16, tzinfo=UTC)
    assert budget.month_start(late) == datetime(2027, 3, 1, tzinfo=UTC)
