"""How the page shows an alert: its numbers with units, and the curve in which its cause is seen."""

from typing import get_args

import pytest

from schemas.alert import AlertRaised, AlertRule, AlertUnit
from services.gateway.page.alerts import HOURS, SLOW, UNITS
from services.gateway.page.charts import CHARTS, METRICS
from services.gateway.page.formats import measured
from services.gateway.webhooks.events import event_of
from tests.builders import NOON


def test_every_rule_has_curves_that_a_jobs_page_has():
    assert METRICS.keys() == set(AlertRule)
    assert {name for names in METRICS.values() for name in names} <= CHARTS.keys()
    assert set(AlertRule) > SLOW
    assert {name for names in UNITS.values() for name in names} <= CHARTS.keys()
    assert UNITS.keys() <= set(get_args(AlertUnit))


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (5.0, "loss", "5.000"),
        (2000.0, "gradient_norm", "2000"),
        (0.008, "fraction", "0.8 %"),
        (61.0, "seconds", "1 min 01 s"),
        (1.8 * 2**30, "bytes", "1.8 GiB"),
        (1200.0, "tokens_per_second", "1,200 tokens/s"),
        (12.5, "us_dollars", "$12.50"),
        (9.5, None, "9.500"),
        (None, "loss", "–"),
    ],
)
def test_numbers_have_their_unit(value, unit, words):
    assert measured(value, unit) == words


def test_a_rule_may_be_muted_for_whole_hours_or_for_good():
    assert [int(hours) for hours in HOURS if hours] == [1, 8, 24, 168]
    assert "" in HOURS


@pytest.mark.parametrize("is_muted", [False, True])
def test_endpoints_are_sent_what_is_not_muted(is_muted):
    fact = AlertRaised(
        job_id="ftjob-1",
        tenant="acme",
        attempt=1,
        rule=AlertRule.STALL,
        episode=1,
        step=10,
        message="no step for 61 s",
        is_muted=is_muted,
    )
    event = event_of(fact, event_id="1", time=NOON)
    assert (event is None) == is_muted
    if event is not None:
        assert (event.type, event.subject) == ("retune.alert.raised", "ftjob-1")
        assert '"rule":"stall"' in event.body
