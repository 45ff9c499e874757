"""An attempt ends before its job's budget is passed, and not long before."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.tracker.decide.budget import LOOK_EVERY, Burn, reached
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


@pytest.mark.parametrize(
    ("seconds", "changes", "is_reached"),
    [
        (164, {}, False),
        (165, {}, True),
        (0, {"charged": Decimal("2.65")}, True),
        (1_000, {"price_per_hour": Decimal(0)}, False),
        (-60, {}, False),
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
        idle = burn.max_cost - burn.spent(seen_at) - burn.reserve
        assert idle > -price_of(burn.price_per_hour, LOOK_EVERY) - Decimal("0.00001")
    ended_at = seen_at + used * timedelta(seconds=grace)
    if seen_at > NOON + LOOK_EVERY:
        assert burn.spent(ended_at) <= burn.max_cost + Decimal("0.00001")
    assert burn.spent(ended_at) <= allowed + Decimal("0.00001")
