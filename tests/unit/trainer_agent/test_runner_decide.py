"""The runner's decisions: when to stop, when a child hangs, and how an attempt ended."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from schemas.base import BundleRef, FailureClass
from schemas.job import StopReason
from schemas.training import StopTraining
from services.trainer_agent.protocol import (
    BundleKind,
    Ended,
    Outcome,
    PreflightDone,
    Progressed,
    Saved,
    Started,
    Stepped,
)
from services.trainer_agent.runner.decide import (
    ChildEnd,
    Grant,
    Move,
    Progress,
    Section,
    Wish,
    conclude,
    next_move,
    why_fenced,
)
from tests.builders import a_preparation

NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
SHA = "a" * 64
BUNDLE = BundleRef(attempt=1, step=7, manifest_sha256=SHA)
LIMITS = {Section.SETUP: 60 * SECOND, Section.STEP: 10 * SECOND, Section.SAVE: 30 * SECOND}
STARTED = Started(num_steps=9, start_step=4, world_size=1, num_parameters=1, num_trainable=1, device="cpu")


def a_stop(*, seconds: float = 30, reason: StopReason = StopReason.CANCEL) -> StopTraining:
    return StopTraining(
        job_id="ftjob-1",
        tenant="acme",
        attempt=1,
        reason=reason,
        deadline=NOON + timedelta(seconds=seconds),
    )


def nobody() -> Wish:
    return Wish(notice_wait=2 * SECOND)


def asked(*, seconds: float = 30) -> Wish:
    return nobody().with_directive(a_stop(seconds=seconds))


def noticed(*, seconds: float = 30) -> Wish:
    return nobody().with_notice(NOON + timedelta(seconds=seconds), now=NOON)


def a_step(step: int) -> Stepped:
    return Stepped(
        step=step,
        loss=1.0,
        learning_rate=0.1,
        grad_norm=1.0,
        num_tokens=1,
        tokens_per_second=1.0,
        memory_bytes=1,
        epoch=0.1,
    )


class TestWish:
    def test_nobody_asks_at_first(self):
        assert not nobody().is_asked(NOON)
        assert nobody().deadline is None

    def test_a_directive_counts_at_once(self):
        assert asked().is_asked(NOON)
        assert (asked().reason, asked().deadline) == ("cancel", NOON + 30 * SECOND)

    def test_a_notice_waits_for_its_directive_before_it_counts(self):
        wish = noticed()
        assert not wish.is_asked(NOON + 1.9 * SECOND)
        assert wish.is_asked(NOON + 2 * SECOND)
        assert wish.reason == "preempt"

    def test_a_short_notice_waits_shorter(self):
        assert noticed(seconds=2).is_asked(NOON + 0.5 * SECOND)
        assert not noticed(seconds=2).is_asked(NOON + 0.4 * SECOND)

    def test_a_directive_after_a_notice_counts_at_once(self):
        assert noticed().with_directive(a_stop()).is_asked(NOON)

    @pytest.mark.parametrize(("notice", "stop", "earliest"), [(10, 30, 10), (30, 10, 10)])
    def test_the_earliest_deadline_holds(self, notice, stop, earliest):
        wish = noticed(seconds=notice).with_directive(a_stop(seconds=stop))
        assert wish.deadline == NOON + earliest * SECOND

    def test_a_later_directive_replaces_an_earlier_one(self):
        assert asked().with_directive(a_stop(seconds=5)).deadline == NOON + 5 * SECOND

    def test_a_second_notice_does_not_start_the_wait_again(self):
        wish = noticed().with_notice(NOON + 20 * SECOND, now=NOON + SECOND)
        assert wish.is_asked(NOON + 2 * SECOND)
        assert wish.deadline == NOON + 20 * SECOND


class TestProgress:
    def progress(self, *reports: object) -> Progress:
        progress = Progress(moved_at=0.0)
        for report in reports:
            progress = progress.after(report, now=100.0)
        return progress

    def test_is_setup_until_the_first_step(self):
        assert self.progress(STARTED).section(stopping=False) is Section.SETUP
        assert self.progress(STARTED).section(stopping=True) is Section.SETUP

    def test_is_saving_after_the_last_step_and_after_a_stop(self):
        assert self.progress(STARTED, a_step(8)).section(stopping=False) is Section.STEP
        assert self.progress(STARTED, a_step(8)).section(stopping=True) is Section.SAVE
        assert self.progress(STARTED, a_step(9)).section(stopping=False) is Section.SAVE

    @pytest.mark.parametrize(
        ("reports", "stopping", "limit"),
        [((STARTED,), False, 60), ((STARTED, a_step(5)), False, 10), ((STARTED, a_step(5)), True, 30)],
        ids=["setup", "step", "save"],
    )
    def test_hangs_when_its_section_takes_too_long(self, reports, stopping, limit):
        progress = self.progress(*reports)
        assert not progress.is_hung(LIMITS, stopping=stopping, now=100.0 + limit)
        assert progress.is_hung(LIMITS, stopping=stopping, now=100.1 + limit)

    @pytest.mark.parametrize(
        "report",
        [
            STARTED,
            a_step(5),
            PreflightDone(preparation=a_preparation()),
            Saved(step=5, bundle=BundleKind.PERIODIC, directory="b", parts=()),
            Progressed(done=3, total=9),
        ],
        ids=lambda report: report.kind,
    )
    def test_any_report_is_progress(self, report):
        assert self.progress(report).moved_at == 100.0

    def test_knows_where_a_resumed_run_stands(self):
        assert (self.progress(STARTED).step, self.progress(STARTED, a_step(5)).step) == (4, 5)


class TestNextMove:
    def move(self, wish: Wish, *, has_asked: bool = False, at: float = 0.0, hung: bool = False) -> Move:
        progress = Progress(moved_at=-1000.0 if hung else 0.0)
        return next_move(
            wish,
            progress,
            LIMITS,
            has_asked=has_asked,
            margin=SECOND,
            now=NOON + timedelta(seconds=at),
            monotonic=0.0,
        )

    @pytest.mark.parametrize(
        ("wish", "options", "move"),
        [
            (nobody(), {}, Move.NONE),
            (asked(), {}, Move.ASK_TO_STOP),
            (asked(), {"has_asked": True}, Move.NONE),
            (noticed(), {}, Move.NONE),
            (noticed(), {"at": 2}, Move.ASK_TO_STOP),
            (asked(), {"has_asked": True, "at": 28.9}, Move.NONE),
            (asked(), {"has_asked": True, "at": 29}, Move.END_AT_DEADLINE),
            (noticed(), {"has_asked": True, "at": 29}, Move.END_AT_DEADLINE),
            (asked(seconds=-5), {}, Move.END_AT_DEADLINE),
            (nobody(), {"hung": True}, Move.END_AS_HUNG),
            (asked(), {"has_asked": True, "hung": True}, Move.END_AS_HUNG),
            (asked(seconds=-5), {"hung": True}, Move.END_AT_DEADLINE),
        ],
    )
    def test_of_a_running_child(self, wish, options, move):
        assert self.move(wish, **options) is move


def ended(outcome: Outcome, *, failure: FailureClass | None = None) -> Ended:
    return Ended(outcome=outcome, failure_class=failure, message="why", last_step=7)


def the_end(end: ChildEnd, *, bundle: BundleRef | None = BUNDLE, puts_manifest: bool = True):
    return conclude(end, last_step=5, bundle=bundle, puts_manifest=puts_manifest)


class TestConclude:
    def test_completed(self):
        ending = the_end(ChildEnd(ended(Outcome.COMPLETED), 0))
        assert (ending.outcome, ending.bundle, ending.last_step) == (Outcome.COMPLETED, BUNDLE, 7)
        assert ending.exit_code == 0

    def test_completed_whatever_the_exit_code_says(self):
        assert the_end(ChildEnd(ended(Outcome.COMPLETED), 1)).outcome is Outcome.COMPLETED

    def test_completed_without_its_bundle_stored(self):
        ending = the_end(ChildEnd(ended(Outcome.COMPLETED), 0), bundle=None)
        assert (ending.outcome, ending.failure_class) == (Outcome.FAILED, FailureClass.INFRA)
        assert ending.exit_code == 143

    def test_completed_on_a_node_that_stores_no_whole_bundles(self):
        ending = the_end(ChildEnd(ended(Outcome.COMPLETED), 0), bundle=None, puts_manifest=False)
        assert ending.outcome is Outcome.COMPLETED

    @pytest.mark.parametrize("bundle", [BUNDLE, None], ids=["stored", "too late"])
    def test_stopped(self, bundle):
        ending = the_end(ChildEnd(ended(Outcome.STOPPED), 143), bundle=bundle)
        assert (ending.outcome, ending.bundle, ending.exit_code) == (Outcome.STOPPED, bundle, 143)

    def test_ended_at_the_deadline_is_stopped(self):
        ending = the_end(ChildEnd(None, -9, move=Move.END_AT_DEADLINE), bundle=None)
        assert (ending.outcome, ending.last_step, ending.bundle) == (Outcome.STOPPED, 5, None)

    @pytest.mark.parametrize("failure", list(FailureClass))
    def test_failed_by_its_own_word(self, failure):
        ending = the_end(ChildEnd(ended(Outcome.FAILED, failure=failure), 1))
        assert (ending.outcome, ending.failure_class, ending.message) == (Outcome.FAILED, failure, "why")
        assert ending.exit_code == 143

    @pytest.mark.parametrize(
        ("end", "failure", "message"),
        [
            (ChildEnd(None, 1, (137,)), FailureClass.INFRA, "the training child was ended by signal 9"),
            (ChildEnd(None, 1, (143, 139)), FailureClass.INFRA, "the training child was ended by signal 11"),
            (ChildEnd(None, -9), FailureClass.INFRA, "the training child was ended by signal 9"),
            (
                ChildEnd(None, 1, (1, 143)),
                FailureClass.INTERNAL,
                "the training child exited with code 1 and no last report; its log tells more",
            ),
            (
                ChildEnd(None, 1),
                FailureClass.INFRA,
                "torchrun ended with code 1 and no training process of it did by itself",
            ),
            (
                ChildEnd(None, 0, (0,)),
                FailureClass.INTERNAL,
                "the training child exited with code 0 and no last report; its log tells more",
            ),
            (
                ChildEnd(None, 1, (137,), oom_kills=1),
                FailureClass.OOM,
                "a training process was killed because memory ran out",
            ),
            (
                ChildEnd(None, -6, (134,), move=Move.END_AS_HUNG, section=Section.STEP),
                FailureClass.INFRA,
                "the training child hung: no progress in its step section",
            ),
        ],
    )
    def test_failed_without_a_word(self, end, failure, message):
        ending = the_end(end, bundle=None)
        assert (ending.outcome, ending.failure_class) == (Outcome.FAILED, failure)
        assert ending.message == message

    @pytest.mark.parametrize(
        ("told", "failure"),
        [
            (FailureClass.INFRA, FailureClass.OOM),
            (FailureClass.INTERNAL, FailureClass.OOM),
            (FailureClass.NUMERIC, FailureClass.NUMERIC),
        ],
    )
    def test_the_word_of_a_peer_of_one_that_was_killed_for_memory(self, told, failure):
        end = ChildEnd(ended(Outcome.FAILED, failure=told), 1, oom_kills=1)
        assert the_end(end).failure_class is failure

    def test_its_own_word_counts_more_than_what_we_did_to_it(self):
        end = replace(ChildEnd(ended(Outcome.STOPPED), -9), move=Move.END_AT_DEADLINE)
        assert the_end(end).message == "why"


class TestFence:
    def why(self, *, silent: float, grant: Grant | None) -> str:
        """At second 100,000 of the clock, with a fence after 15 s and an outage of at most a day."""
        return why_fenced(
            acknowledged_at=100_000 - silent,
            grant=grant,
            fence_after=15 * SECOND,
            outage_limit=timedelta(days=1),
            now=100_000,
        )

    @pytest.mark.parametrize(("silent", "is_fenced"), [(14, False), (15, True)])
    def test_without_grants_fifteen_seconds_without_an_acknowledgment_are_the_end(self, silent, is_fenced):
        assert bool(self.why(silent=silent, grant=None)) is is_fenced

    @pytest.mark.parametrize(("silent", "is_fenced"), [(3600, False), (86_399, False), (86_400, True)])
    def test_a_grant_lets_it_go_on_through_an_outage_for_a_day(self, silent, is_fenced):
        assert bool(self.why(silent=silent, grant=Grant(read_at=99_999))) is is_fenced

    @pytest.mark.parametrize("silent", [0, 3600])
    def test_a_withdrawn_grant_is_the_end_at_once(self, silent):
        assert "withdrew" in self.why(silent=silent, grant=Grant(read_at=100_000, is_withdrawn=True))

    @pytest.mark.parametrize(("unread", "is_fenced"), [(14, False), (15, True)])
    def test_a_grant_that_cannot_be_read_holds_for_fifteen_seconds(self, unread, is_fenced):
        assert bool(self.why(silent=0, grant=Grant(read_at=100_000 - unread))) is is_fenced
