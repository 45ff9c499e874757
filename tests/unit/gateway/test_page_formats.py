"""Numbers on the page: each has its unit, and nothing unknown reads like a zero."""

from datetime import timedelta
from decimal import Decimal

import pytest

from services.gateway.page import formats
from tests.builders import NOON


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (formats.whole, 12345, "12,345"),
        (formats.whole, 0, "0"),
        (formats.loss, 0.9123456, "0.9123"),
        (formats.loss, 2.0, "2.000"),
        (formats.loss, 1234.5678, "1235"),
        (formats.loss, 123456.0, "1.235e5"),
        (formats.loss, 0.00001234, "1.234e-5"),
        (formats.loss, 0.0, "0.000"),
        (formats.loss, float("nan"), "not a number"),
        (formats.learning_rate, 2e-4, "2e-4"),
        (formats.learning_rate, 1.25e-5, "1.25e-5"),
        (formats.learning_rate, 1.23456e-5, "1.23e-5"),
        (formats.learning_rate, 0.001, "1e-3"),
        (formats.learning_rate, 0.0025, "0.0025"),
        (formats.learning_rate, 0.05, "0.05"),
        (formats.learning_rate, 0.0, "0"),
        (formats.percent, 0.933, "93.3 %"),
        (formats.points, -0.3, "-0.3 pt"),
        (formats.points, 5.0, "+5.0 pt"),
        (formats.tokens, 10_200_000, "10.2 M tokens"),
        (formats.tokens, 940, "940 tokens"),
        (formats.speed, 3410.4, "3,410 tokens/s"),
        (formats.size, 33_285_996_544, "31.0 GiB"),
        (formats.size, 512, "512 B"),
        (formats.money, Decimal("3.12"), "$3.12"),
        (formats.money, Decimal("0.004"), "under $0.01"),
        (formats.money, "0", "$0.00"),
        (formats.money, "1234.5", "$1,234.50"),
        (formats.duration, 0.85, "850 ms"),
        (formats.duration, 0, "0 s"),
        (formats.duration, 41, "41 s"),
        (formats.duration, 125, "2 min 05 s"),
        (formats.duration, 600, "10 min"),
        (formats.duration, 7500, "2 h 05 min"),
        (formats.duration, 273_600, "3 d 4 h"),
    ],
)
def test_a_number_has_its_unit(function, value, text):
    assert function(value) == text


@pytest.mark.parametrize(
    "function",
    [
        formats.whole, formats.loss, formats.learning_rate, formats.percent, formats.points, formats.tokens,
        formats.speed, formats.size, formats.money, formats.duration,
    ],
)  # fmt: skip
def test_what_is_not_known_is_no_zero(function):
    assert function(None) == "unknown"


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(2160, 3000, "36-50 min"), (40, 41, "40-41 s"), (10_000, 17_000, "3-5 h"), (120, 121, "2 min")],
)
def test_an_estimate_is_a_range(low, high, text):
    assert formats.span(low, high) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "just now"),
        (-2, "just now"),
        (41, "41 s ago"),
        (250, "4 min ago"),
        (90_000, "1 d ago"),
        (-90, "in 1 min 30 s"),
    ],
)
def test_the_age_of_a_thing(seconds, text):
    assert formats.ago(NOON, now=NOON + timedelta(seconds=seconds)) == text


def test_an_exact_time_has_its_zone():
    assert formats.moment(NOON) == "2027-03-01 12:00:00 UTC"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (False, "false"),
        (None, "–"),
        ([], "–"),
        (["q", True], "q, true"),
        (0.5, "0.5"),
        (1.0, "1.0"),
        (0.0, "0.0"),
        (2e-4, "2e-4"),
        ([1e-5, 0.02], "1e-5, 0.02"),
        (0.000123456789, "1.23456789e-4"),
        (-0.0001, "-1e-4"),
        ("auto", "auto"),
    ],
)
def test_a_setting_is_written_as_it_is_typed(value: object, text: str):
    assert formats.setting(value) == text
