from datetime import UTC, datetime, timedelta

import pytest

from schemas import layout
from schemas.base import BundleRef
from services.checkpoint_watcher.decide import abandoned, expirable, is_overdue, next_look
from services.checkpoint_watcher.model import Attempt, Checkpoint, CheckpointState

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def a_checkpoint(attempt: int, step: int, state: CheckpointState = CheckpointState.VERIFIED) -> Checkpoint:
    bundle = BundleRef(attempt=attempt, step=step, manifest_sha256="5e" * 32)
    return Checkpoint("ftjob-1", "acme", bundle, state)


def an_attempt(**changes: object) -> Attempt:
    defaults: dict = {
        "job_id": "ftjob-1",
        "tenant": "acme",
        "attempt": 2,
        "interval_seconds": 60.0,
        "resume": None,
        "is_open": True,
        "last_step": 0,
        "last_written_at": None,
        "started_at": NOON,
    }
    return Attempt(**(defaults | changes))


class TestExpirable:
    def test_keeps_the_two_newest_verified_over_all_attempts(self):
        expired = expirable(
            [a_checkpoint(1, 500), a_checkpoint(2, 100), a_checkpoint(1, 400)], an_attempt(), keep=2
        )
        assert [each.age for each in expired] == [(1, 400)]

    def test_corrupt_and_unverified_ones_do_not_count_as_kept(self):
        checkpoints = [
            a_checkpoint(1, 10),
            a_checkpoint(1, 20),
            a_checkpoint(1, 30, CheckpointState.CORRUPT),
            a_checkpoint(1, 40, CheckpointState.WRITTEN),
        ]
        assert expirable(checkpoints, an_attempt(), keep=2) == []

    def test_never_deletes_what_the_open_attempt_began_from(self):
        checkpoints = [a_checkpoint(1, 10), a_checkpoint(2, 20), a_checkpoint(2, 30)]
        assert expirable(checkpoints, an_attempt(resume=(1, 10)), keep=2) == []
        closed = an_attempt(resume=(1, 10), is_open=False)
        assert [each.age for each in expirable(checkpoints, closed, keep=2)] == [(1, 10)]

    def test_never_deletes_what_another_job_starts_from(self):
        checkpoints = [a_checkpoint(1, 10), a_checkpoint(1, 15), a_checkpoint(2, 20), a_checkpoint(2, 30)]
        expired = expirable(checkpoints, an_attempt(), keep=2, used={(1, 10)})
        assert [each.age for each in expired] == [(1, 15)]


def keys_of(step: int, *paths: str) -> list[str]:
    return [layout.checkpoint("ftjob-1", 2, step, path) for path in paths]


class TestAbandoned:
    def test_bundles_without_a_manifest_go_and_all_others_stay_whole(self):
        complete = keys_of(10, layout.MANIFEST, layout.part("5e1"), layout.part("5e2"))
        cut_off = keys_of(1, layout.part("5e1")) + keys_of(100, layout.part("5e3"), layout.part("5e4"))
        assert abandoned(sorted(complete + cut_off)) == sorted(cut_off)

    def test_where_nothing_was_finished_everything_goes(self):
        cut_off = keys_of(10, layout.part("5e1"))
        assert abandoned(cut_off) == cut_off
        assert abandoned([]) == []


class TestOverdue:
    @pytest.mark.parametrize(("seconds", "expected"), [(179, False), (180, True)])
    def test_after_three_intervals_without_a_bundle(self, seconds, expected):
        now = NOON + timedelta(seconds=seconds)
        assert is_overdue(an_attempt(), now=now, intervals=3) is expected

    def test_counts_from_the_last_bundle(self):
        attempt = an_attempt(last_written_at=NOON + timedelta(seconds=100))
        assert not is_overdue(attempt, now=NOON + timedelta(seconds=200), intervals=3)
        assert next_look(attempt, now=NOON, intervals=3) == NOON + timedelta(seconds=280)

    @pytest.mark.parametrize("seconds", [180, 1000])
    def test_one_that_is_overdue_is_looked_at_again_after_three_intervals_more(self, seconds):
        now = NOON + timedelta(seconds=seconds)
        assert next_look(an_attempt(), now=now, intervals=3) == now + timedelta(seconds=180)

    def test_a_closed_or_unstarted_attempt_is_never_overdue(self):
        later = NOON + timedelta(days=1)
        assert not is_overdue(an_attempt(is_open=False), now=later, intervals=3)
        assert not is_overdue(an_attempt(started_at=None), now=later, intervals=3)
