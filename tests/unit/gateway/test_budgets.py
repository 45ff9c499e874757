"""When a tenant's month is used up, and when the next one begins."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from services.gateway.quotas import month_reached_at, next_month

NOON = datetime(2027, 3, 10, 12, tzinfo=UTC)
FIRST = datetime(2027, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("limit", "charged", "reached_at", "expected"),
    [
        (None, "99", NOON, None),
        (10, "9.99", None, None),
        (10, "10", None, NOON),
        (10, "9.70", FIRST, FIRST),  # the tracker kept a part back for checkpoints
        (10, "0", FIRST - timedelta(seconds=1), None),
        (0, "0", None, NOON),
    ],
)
def test_a_month_is_used_up_by_charges_or_by_what_ran(limit, charged, reached_at, expected):
    assert month_reached_at(limit, Decimal(charged), reached_at, now=NOON) == expected


@pytest.mark.parametrize(
    ("now", "begins"),
    [
        (NOON, datetime(2027, 4, 1, tzinfo=UTC)),
        (datetime(2027, 1, 31, 23, 59, tzinfo=UTC), datetime(2027, 2, 1, tzinfo=UTC)),
        (datetime(2027, 2, 1, tzinfo=UTC), datetime(2027, 3, 1, tzinfo=UTC)),
        (datetime(2027, 12, 31, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC)),
    ],
)
def test_the_next_month_begins_at_midnight_of_utc(now, begins):
    assert next_month(now) == begins
