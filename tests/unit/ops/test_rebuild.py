"""Rows that differ are named; times of the same moment and lists that are sets do not differ."""

from datetime import timedelta
from typing import Any

import pytest

from ops.state_verification.difference import Table, compare, same
from ops.state_verification.live import Live
from ops.state_verification.timeline import passed_over, timeline
from schemas.job import CancelJob, JobRunning
from tests.unit.cli.commandline import NOON, delivered

SECOND = timedelta(seconds=1)


def keyed(*rows: dict[str, Any]) -> Table:
    return Table("job", ("id",), rows)


def differences(live: Table, rebuilt: Table) -> list[tuple]:
    return [each.row for each in compare([live], [rebuilt])]


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (1, 1, True),
        (1, 2, False),
        ("a", "b", False),
        (NOON, NOON + SECOND, True),
        (NOON, NOON + 2 * SECOND, False),
        (NOON.isoformat(), (NOON + SECOND / 2).isoformat(), True),
        (NOON.isoformat(), (NOON + 2 * SECOND).isoformat(), False),
        (NOON.isoformat(), "soon", False),
        ({"a": [1, 2]}, {"a": [2, 1]}, True),
        ({"a": [1, 1, 2]}, {"a": [2, 2, 1]}, False),
        ({"a": 1}, {"b": 1}, False),
        (None, "", False),
        ([], {}, False),
    ],
)
def test_what_is_the_same(one: Any, other: Any, equal: bool):
    assert same(one, other) is equal
    assert same(other, one) is equal


class TestRows:
    def test_a_changed_field_is_named_with_both_values(self):
        rows = differences(
            keyed({"id": "j", "state": "failed", "n": 1}), keyed({"id": "j", "state": "queued", "n": 1})
        )
        assert rows == [("job", "j", "state", "failed", "queued")]

    def test_rows_that_only_one_side_has(self):
        rows = differences(keyed({"id": "a"}), keyed({"id": "b"}))
        assert rows == [("job", "a", "", "there", "missing"), ("job", "b", "", "missing", "there")]

    def test_rows_without_a_key_are_counted(self):
        live = Table("ignored", (), ({"why": "x"}, {"why": "x"}))
        assert differences(live, Table("ignored", (), live.rows)) == []
        rows = differences(live, Table("ignored", (), ({"why": "x"}, {"why": "y"})))
        assert [row[3:] for row in rows] == [("there", "missing"), ("missing", "there")]


def live(**changes: Any) -> Live:
    fields = {"applied": {}, "kept": frozenset(), "last": {}, "unsent": (), "timers": keyed(), "tables": ()}
    return Live(at=NOON, **fields | changes)


class TestTimeline:
    def test_a_message_was_handled_when_its_events_were_made_else_when_the_inbox_says(self):
        caused, other = (delivered(CancelJob(job_id=job, tenant="t", reason="user")) for job in ("a", "b"))
        event = delivered(JobRunning(job_id="a", tenant="t", attempt=1), minute=2)
        effect = type(event)(
            event.record,
            event.topic,
            type(event.envelope)(**vars(event.envelope) | {"causation_id": caused.envelope.id}),
            event.message,
        )
        applied = {
            ("job.commands", caused.envelope.id): NOON + 3 * SECOND,
            ("job.commands", other.envelope.id): NOON + SECOND,
        }
        steps = timeline([caused, other], {effect.envelope.id: effect}, live(applied=applied))
        assert [(step.at, step.message, step.events) for step in steps] == [
            (NOON + SECOND, other, ()),
            (NOON + timedelta(minutes=2), caused, (effect,)),
        ]

    def test_what_was_not_applied_is_left_out_and_events_without_cause_are_steps(self):
        message = delivered(CancelJob(job_id="a", tenant="t", reason="user"))
        event = delivered(JobRunning(job_id="a", tenant="t", attempt=1), minute=2)
        (step,) = timeline([message], {event.envelope.id: event}, live())
        assert (step.at, step.message, step.events) == (NOON + timedelta(minutes=2), None, (event,))


class TestPassedOver:
    def messages(self) -> list[Any]:
        import dataclasses

        deliveries = [delivered(CancelJob(job_id=f"j{n}", tenant="t", reason="user")) for n in range(3)]
        now = int(NOON.timestamp() * 1000)
        return [
            dataclasses.replace(each, record=dataclasses.replace(each.record, offset=n, timestamp_ms=now))
            for n, each in enumerate(deliveries)
        ]

    def keys_passed_over(self, messages: list[Any], **changes: Any) -> list[str]:
        forgotten = NOON - timedelta(days=29)
        skipped = passed_over(messages, live(**changes), forgotten=lambda _: forgotten)
        return [each.key for each in skipped]

    def test_one_without_trace_before_one_that_was_read(self):
        messages = self.messages()
        applied = {("job.commands", messages[number].envelope.id): NOON for number in (0, 2)}
        assert self.keys_passed_over(messages, applied=applied) == ["job.commands/0@1"]
        assert (
            self.keys_passed_over(messages, applied=applied, kept=frozenset({("job.commands", 0, 1)})) == []
        )

    def test_what_is_not_read_yet_is_none(self):
        messages = self.messages()
        assert self.keys_passed_over(messages) == []
        assert (
            self.keys_passed_over(messages, applied={("job.commands", messages[0].envelope.id): NOON}) == []
        )
