"""What is marked on the curves of a job: where attempts ended and were resumed, and alerts on the curves of their cause."""

from datetime import timedelta

import pytest

from schemas.alert import AlertRule
from services.gateway.alerts import AlertRow
from services.gateway.model import JobEvent
from services.gateway.page.charts import MARKED_ALERTS, METRICS, mark_of_alert, mark_of_event, marks
from tests.builders import NOON


def an_alert(number: int = 1, *, is_open: bool = True, **changes: object) -> AlertRow:
    fields = {
        "number": number, "job_id": "ftjob-1", "attempt": 1, "rule": AlertRule.LOSS_SPIKE, "episode": number,
        "step": 1500, "value": 3.4, "limit_value": 2.0, "unit": "loss", "message": "loss 3.4, usually 1",
        "raised_at": NOON, "cleared_at": None if is_open else NOON + timedelta(minutes=1), "cleared_by": "",
        "is_muted": False, "action": "notify", "mute_job_id": None, "mute_until": None, "muted_by": None,
        "muted_at": None,
    }  # fmt: skip
    return AlertRow(**fields | changes)


def an_event(**data: object) -> JobEvent:
    fields = {"id": 1, "job_id": "ftjob-1", "event_id": "1", "type": "TrainingStopped", "level": "info"}
    return JobEvent(**fields, message="it stopped", data=data, created_at=NOON)


@pytest.mark.parametrize(("is_open", "kind"), [(True, "open"), (False, "cleared")])
def test_an_alert_is_marked_where_it_was_raised_with_its_message(is_open, kind):
    mark = mark_of_alert(an_alert(is_open=is_open))
    assert (mark["kind"], mark["step"], mark["at"]) == (kind, 1500, NOON.timestamp())
    assert mark["text"] == f"{kind} alert, loss spike at step 1,500: loss 3.4, usually 1"


@pytest.mark.parametrize("rule", AlertRule)
def test_an_alert_is_marked_on_the_curves_in_which_its_cause_is_seen(rule):
    assert mark_of_alert(an_alert(rule=rule))["metrics"] == [*METRICS[rule]]


@pytest.mark.parametrize(
    ("data", "kind", "step"),
    [({"last_step": 900}, "stopped", 900), ({"certificate": {"step": 910}}, "resumed", 910)],
)
def test_an_attempt_is_marked_on_every_curve(data, kind, step):
    mark = mark_of_event(an_event(**data))
    assert mark == {"kind": kind, "step": step, "text": "it stopped", "at": NOON.timestamp()}


def test_open_alerts_and_the_newest_cleared_ones_have_a_mark():
    open_alerts = [an_alert(number) for number in (200, 3)]
    cleared = [an_alert(number, step=number, is_open=False) for number in range(150, 50, -1)]
    marked = marks([an_event(last_step=900)], open_alerts, cleared)
    kinds = [mark["kind"] for mark in marked.marks]
    assert kinds == ["stopped", "open", "open", *["cleared"] * (MARKED_ALERTS - 2)]
    assert [mark["step"] for mark in marked.marks][3:5] == [150, 149]
    assert (marked.num_open, marked.num_cleared, marked.num_alerts) == (2, MARKED_ALERTS - 2, MARKED_ALERTS)
    assert marked.has_more


def test_as_many_alerts_as_have_room_are_all_marked():
    cleared = [an_alert(number, is_open=False) for number in range(MARKED_ALERTS)]
    marked = marks([], [], cleared)
    assert (marked.num_open, marked.num_cleared, marked.has_more) == (0, MARKED_ALERTS, False)
