"""The days of a month as bars, whose heights are the sums."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from services.gateway.costs import CostRow, as_csv
from services.gateway.page.costs import BOTTOM, HEIGHT, TOP, bars_of

FEBRUARY = datetime(2027, 2, 1, tzinfo=UTC)


def a_row(name: str | None, cost: str, charged: str) -> CostRow:
    return CostRow(
        name=name,
        attempts=1,
        device_seconds=0,
        cost=Decimal(cost),
        charged=Decimal(charged),
        spot_waste=Decimal(0),
    )


def test_a_bar_has_what_was_charged_below_what_was_not():
    days = bars_of([a_row("2027-02-02", "4", "1"), a_row("2027-02-28", "2", "2")], FEBRUARY)
    assert len(days.bars) == 28
    whole, second, last = HEIGHT - BOTTOM - TOP, days.bars[1], days.bars[27]
    assert (second.charged_height, second.free_height) == (whole / 4, whole * 3 / 4)
    assert (second.free_top, second.charged_top) == (TOP, TOP + whole * 3 / 4)
    assert (last.charged_height, last.free_height) == (whole / 2, 0)
    assert second.title == "2027-02-02: $1.00 charged, $3.00 not charged"
    assert [tick.text for tick in days.ticks] == ["$0.00", "$1.00", "$2.00", "$3.00", "$4.00"]
    assert days.words == "Cost by day: $6.00 in 2027-02, at most $4.00 in a day"


def test_a_month_without_costs_has_no_picture():
    assert bars_of([], FEBRUARY) is None
    assert bars_of([a_row("2027-02-02", "0", "0")], FEBRUARY) is None


def test_a_file_names_no_formula_and_no_price_of_no_time():
    lines = as_csv("experiment", [a_row("@x", "4", "1"), a_row(None, "1", "1")]).splitlines()
    assert lines[0] == (
        "experiment,attempts,device_hours,cost_usd,charged_usd,free_usd,spot_waste_usd,usd_per_device_hour"
    )
    assert lines[1:] == ["'@x,1,0.0,4,1,3,0,", ",1,0.0,1,1,0,0,"]


@pytest.mark.parametrize(
    ("highest", "ticks"),
    [
        ("10.25", ["$0.00", "$5.00", "$10.00"]),
        ("980", ["$0.00", "$200.00", "$400.00", "$600.00", "$800.00"]),
        ("0.024", ["$0.00", "$0.01", "$0.02"]),
        ("0.004", ["$0.00", "under $0.01"]),
    ],
)
def test_the_ticks_of_a_months_costs_are_round(highest, ticks):
    days = bars_of([a_row("2027-02-02", highest, "0")], FEBRUARY)
    assert [tick.text for tick in days.ticks] == ticks
