from datetime import UTC, datetime, timedelta

import pytest

from schemas import layout
from schemas.base import BestBundle, BundleRef
from services.checkpoint_watcher.decide import (
    abandoned,
    expirable,
    is_overdue,
    next_look,
    problem_of_best,
    waiting_for,
    waits_for_best,
)
from services.checkpoint_watcher.model import Attempt, Checkpoint, CheckpointState

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def a_bundle(attempt: int, step: int, job_id: str | None = None) -> BundleRef:
    return BundleRef(attempt=attempt, step=step, manifest_sha256="5e" * 32, job_id=job_id)


def a_checkpoint(
    attempt: int,
    step: int,
    state: CheckpointState = CheckpointState.VERIFIED,
    best: BundleRef | None = None,
) -> Checkpoint:
    named = None if best is None else BestBundle(bundle=best, valid_loss=1.5)
    return Checkpoint("ftjob-1", "acme", a_bundle(attempt, step), state, named)


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

    @pytest.mark.parametrize(
        ("best", "resume", "used", "gone"),
        [
            ({}, None, (), [30, 20, 10]),
            ({50: 10}, None, (), [30, 20]),
            ({50: 30, 40: 10}, None, (), [20]),
            ({40: 40, 50: 40}, None, (), [30, 20, 10]),
            # Of what goes itself.
            ({30: 10}, None, (), [30, 20, 10]),
            # Of what the open attempt began from, and of what another job starts from.
            ({30: 10}, (1, 30), (), [20]),
            ({30: 10}, None, {(1, 30)}, [20]),
        ],
    )
    def test_the_best_one_of_what_stays_stays(self, best, resume, used, gone):
        checkpoints = [
            a_checkpoint(1, step, best=a_bundle(1, best[step]) if step in best else None)
            for step in (10, 20, 30, 40, 50)
        ]
        expired = expirable(checkpoints, an_attempt(resume=resume), keep=2, used=used)
        assert [each.bundle.step for each in expired] == gone

    def test_the_best_one_of_what_has_no_verdict_yet_stays(self):
        new = a_checkpoint(1, 50, CheckpointState.WRITTEN, best=a_bundle(1, 10))
        checkpoints = [*(a_checkpoint(1, step) for step in (10, 20, 30, 40)), new]
        assert [each.bundle.step for each in expirable(checkpoints, an_attempt(), keep=2)] == [20]

    def test_the_best_one_of_a_corrupt_one_goes(self):
        corrupt = a_checkpoint(1, 50, CheckpointState.CORRUPT, best=a_bundle(1, 10))
        checkpoints = [*(a_checkpoint(1, step) for step in (10, 30, 40)), corrupt]
        assert [each.bundle.step for each in expirable(checkpoints, an_attempt(), keep=2)] == [10]


class TestBest:
    LATER = a_checkpoint(2, 20, CheckpointState.WRITTEN, best=a_bundle(1, 10))

    @pytest.mark.parametrize(
        ("state", "waits", "problem"),
        [
            (CheckpointState.WRITTEN, True, "step 10 of attempt 1, is written; expected verified"),
            (CheckpointState.VERIFIED, False, ""),
            (CheckpointState.CORRUPT, False, "step 10 of attempt 1, is corrupt; expected verified"),
            (CheckpointState.EXPIRING, False, "step 10 of attempt 1, is expiring; expected verified"),
            (None, False, "step 10 of attempt 1, is not there; expected verified"),
        ],
    )
    def test_what_names_another_one_is_as_good_as_that_one(self, state, waits, problem):
        checkpoints = [*([a_checkpoint(1, 10, state)] if state else []), self.LATER]
        assert waits_for_best(self.LATER, checkpoints) is waits
        reason = problem_of_best(self.LATER, checkpoints)
        assert reason.endswith(problem) if problem else not reason

    @pytest.mark.parametrize("best", [None, a_bundle(2, 20), a_bundle(1, 10, "ftjob-0")])
    def test_what_names_none_itself_or_another_jobs_waits_for_nothing(self, best):
        checkpoint = a_checkpoint(2, 20, CheckpointState.WRITTEN, best=best)
        checkpoints = [a_checkpoint(1, 10, CheckpointState.WRITTEN), checkpoint]
        assert not waits_for_best(checkpoint, checkpoints)
        assert problem_of_best(checkpoint, checkpoints) == ""

    def test_a_verdict_is_waited_for_by_those_that_name_it_and_have_none(self):
        best = a_checkpoint(1, 10)
        judged = a_checkpoint(1, 30, CheckpointState.CORRUPT, best=best.bundle)
        checkpoints = [best, a_checkpoint(1, 15, CheckpointState.WRITTEN), self.LATER, judged]
        assert waiting_for(best.bundle, checkpoints) == [self.LATER]


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

    @pytest.mark.parametrize("started_at", [NOON, None])
    def test_the_first_bundle_is_waited_for_from_the_start_or_from_now(self, started_at):
        since = started_at or NOON + timedelta(seconds=30)
        look = next_look(an_attempt(started_at=started_at), now=NOON + timedelta(seconds=30), intervals=3)
        assert look == since + timedelta(seconds=180)

    @pytest.mark.parametrize("seconds", [180, 1000])
    def test_one_that_is_overdue_is_looked_at_again_after_three_intervals_more(self, seconds):
        now = NOON + timedelta(seconds=seconds)
        assert next_look(an_attempt(), now=now, intervals=3) == now + timedelta(seconds=180)

    def test_a_closed_or_unstarted_attempt_is_never_overdue(self):
        later = NOON + timedelta(days=1)
        assert not is_overdue(an_attempt(is_open=False), now=later, intervals=3)
        assert not is_overdue(an_attempt(started_at=None), now=later, intervals=3)
