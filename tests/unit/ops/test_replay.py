"""What is kept can be made a record again; what would have an effect twice is not sent."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from ops.errors import RefusedByPlatform
from ops.replay.selection import Selection
from ops.replay.targets import Counting, admit, line, record_of, require_sendable
from schemas.job import CancelJob
from shared.record import Record
from tests.builders import NOON, delivered
from tests.unit.auditor.records import records, seeded

CANCEL = delivered(CancelJob(job_id="ftjob-1", tenant="demo", reason="user")).record


def at(record: Record, *, days: float) -> Record:
    """So many days before noon."""
    return replace(record, timestamp_ms=int((NOON - timedelta(days=days)).timestamp() * 1000))


class TestKept:
    def test_any_record_comes_back_as_it_was(self):
        rng, seed_hint = seeded("kept")
        for record in records(rng, 200):
            text = json.dumps(line(record), ensure_ascii=False)
            assert "\n" not in text, seed_hint
            assert record_of(json.loads(text)) == record, seed_hint

    def test_one_that_can_be_read_says_what_it_says(self):
        event = line(CANCEL)["event"]
        assert (event["type"], event["key"], event["data"]["reason"]) == (
            "retune.CancelJob.v1",
            "ftjob-1",
            "user",
        )

    def test_one_that_cannot_says_why(self):
        assert line(replace(CANCEL, value=b"{"))["unreadable"].startswith("bad_json: ")


class TestSent:
    def test_a_young_command_is_sent(self):
        admit(at(CANCEL, days=36), now=NOON)

    def test_one_that_inboxes_have_forgotten_is_not(self):
        with pytest.raises(RefusedByPlatform, match=r"job\.commands/0@7 is of .* for 38 days only"):
            admit(at(CANCEL, days=37.5), now=NOON)

    def test_one_that_would_only_be_parked_is_not(self):
        with pytest.raises(RefusedByPlatform, match=r"job\.commands/0@7 is unreadable \(bad_json"):
            admit(at(replace(CANCEL, value=b"{"), days=1), now=NOON)

    @pytest.mark.parametrize(
        ("to", "sentence"),
        [
            ("job.events", "job.events is written by scheduler alone; .*republish --service scheduler"),
            (
                "parked.tracker",
                "parked.tracker is written by tracker alone; the operator may write dataset.commands",
            ),
            ("tenant.demo.commands", "is written by tenant-demo alone"),
            ("run.metrics", "is written by runner alone"),
        ],
    )
    def test_only_where_the_operator_may_write(self, to: str, sentence: str):
        with pytest.raises(RefusedByPlatform, match=sentence):
            require_sendable(to, Selection((to,)))

    def test_only_to_the_topic_that_they_came_from(self):
        require_sendable("job.commands", Selection(("job.commands",)))
        with pytest.raises(RefusedByPlatform, match=r"found records of model\.commands"):
            require_sendable("job.commands", Selection(("job.commands", "model.commands")))


async def test_counts_are_per_topic_and_type():
    counting = Counting()
    for record in (at(CANCEL, days=1), at(CANCEL, days=3), at(replace(CANCEL, value=b"{"), days=2)):
        await counting.take(record)
    assert counting.rows() == [
        ("job.commands", "CancelJob", 2, "2027-02-26T12:00:00.000+00:00", "2027-02-28T12:00:00.000+00:00"),
        ("job.commands", "unreadable (bad_json)", 1, *["2027-02-27T12:00:00.000+00:00"] * 2),
    ]
    assert counting.total == 3
