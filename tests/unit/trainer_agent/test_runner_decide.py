"""The runner's decisions: when to stop, when a child hangs, and how an attempt ended."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from schemas.base import BundleRef, DatasetRef, FailureClass
from schemas.job import StopReason
from schemas.specification import Recipe
from schemas.training import BundleMetrics, Member, StartTraining, StopTraining
from services.trainer_agent.decide import SILENCE
from services.trainer_agent.protocol import (
    BundleKind,
    Ended,
    Outcome,
    PreflightDone,
    Progressed,
    Saved,
    Started,
    Stepped,
    Validated,
)
from services.trainer_agent.runner.decide import (
    DRIFT,
    ChildEnd,
    Ending,
    Move,
    Progress,
    Section,
    StopRequest,
    conclude,
    next_move,
)
from services.trainer_agent.runner.settings import Settings
from shared.nodes.fence import Grant, why_fenced
from tests.builders import a_preparation
from tests.chaos.scale import note

NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
SHA = "a" * 64
BUNDLE = BundleRef(attempt=1, step=7, manifest_sha256=SHA)
LIMITS = {Section.SETUP: 60 * SECOND, Section.STEP: 10 * SECOND, Section.SAVE: 30 * SECOND}
STARTED = Started(num_steps=9, start_step=4, world_size=1, num_parameters=1, num_trainable=1, device="cpu")


A_START = StartTraining(
    job_id="ftjob-1",
    tenant="acme",
    attempt=1,
    recipe=Recipe(),
    base_sha=SHA,
    dataset=DatasetRef(version=SHA, manifest_sha256=SHA),
    config_hash=SHA,
    resume=None,
    nodes=1,
    devices_per_node=1,
    members=(Member(node_index=0, host="127.0.0.1", port=9),),
    grace_seconds=30,
)


def about(seconds: float) -> object:
    """What this machine's clock may drift meanwhile is added."""
    return pytest.approx(seconds, rel=2 * DRIFT)


def a_stop(*, seconds: float = 30, reason: StopReason = StopReason.CANCEL) -> StopTraining:
    return StopTraining(
        job_id="ftjob-1",
        tenant="acme",
        attempt=1,
        reason=reason,
        deadline=NOON + timedelta(seconds=seconds),
    )


def nobody() -> StopRequest:
    return StopRequest(notice_wait=2 * SECOND)


def training() -> StopRequest:
    """At second 0 of this machine it is noon for Postgres: StartTraining says so."""
    return nobody().after(A_START, NOON, now=0)


def asked(*, seconds: float = 30) -> StopRequest:
    return training().after(a_stop(seconds=seconds), NOON, now=0)


def noticed(*, seconds: float = 30) -> StopRequest:
    return with_notice(training(), seconds=seconds)


def with_notice(stop_request: StopRequest, *, seconds: float = 30, now: float = 0) -> StopRequest:
    return stop_request.with_notice(NOON + timedelta(seconds=seconds), default_grace=5 * SECOND, now=now)


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
        assert not training().is_asked(0)
        assert training().deadline is None

    def test_a_directive_counts_at_once(self):
        assert asked().is_asked(0)
        assert (asked().reason, asked().deadline) == ("cancel", about(30))

    def test_a_notice_waits_for_its_directive_before_it_counts(self):
        stop_request = noticed()
        assert not stop_request.is_asked(1.9)
        assert stop_request.is_asked(2)
        assert stop_request.reason == "preempt"

    def test_a_short_notice_waits_shorter(self):
        assert noticed(seconds=2).is_asked(0.51)
        assert not noticed(seconds=2).is_asked(0.49)
        late = with_notice(training(), seconds=102, now=100)
        assert [late.is_asked(now) for now in (100.49, 100.51)] == [False, True]

    def test_a_directive_after_a_notice_counts_at_once(self):
        assert noticed().after(a_stop(), NOON, now=0).is_asked(0)

    @pytest.mark.parametrize(("notice", "stop", "earliest"), [(10, 30, 10), (30, 10, 10)])
    def test_the_earliest_deadline_holds(self, notice, stop, earliest):
        stop_request = noticed(seconds=notice).after(a_stop(seconds=stop), NOON, now=0)
        assert stop_request.deadline == about(earliest)

    def test_a_later_directive_replaces_an_earlier_one(self):
        assert asked().after(a_stop(seconds=5), NOON, now=0).deadline == about(5)

    def test_a_second_notice_does_not_start_the_wait_again(self):
        stop_request = with_notice(noticed(), seconds=20, now=1)
        assert stop_request.is_asked(2)
        assert stop_request.deadline == about(20)

    def test_a_notice_before_any_directive_leaves_the_usual_grace(self):
        assert with_notice(nobody(), now=100).deadline == 105

    def test_a_notice_without_a_time_leaves_the_usual_grace(self):
        assert training().with_notice(None, default_grace=5 * SECOND, now=100).deadline == 105


class TestDeadline:
    """Of a stop, on a machine whose wall clock says anything: 30 s after noon for Postgres."""

    def test_a_stop_that_is_heard_at_once_leaves_all_its_time(self):
        assert training().after(a_stop(), NOON, now=0.2).deadline == about(30)

    def test_a_start_that_was_heard_late_makes_no_deadline_earlier(self):
        started = nobody().after(A_START, NOON - 100 * SECOND, now=1_000)
        stopped = started.after(a_stop(), NOON, now=1_050)
        assert stopped.deadline == about(1_080)

    def test_a_stop_that_lay_in_kafka_leaves_what_is_left_of_its_time(self):
        assert training().after(a_stop(), NOON, now=20).deadline == about(30)
        assert training().after(a_stop(), NOON, now=600).deadline == about(30)

    def test_what_came_between_tells_more_of_the_time(self):
        """Everything was late, the second stop least."""
        late = nobody().after(A_START, NOON - 100 * SECOND, now=0).after(a_stop(), NOON, now=75)
        assert late.deadline == about(105)
        assert late.after(a_stop(), NOON + 10 * SECOND, now=80).deadline == about(100)

    def test_ten_days_of_a_fast_clock_cost_a_stop_nothing(self):
        """Nobody corrects its rate: it counts 8 s more a day."""
        day = 86_400
        now = 10 * day * (1 + 0.9 * DRIFT)
        stop = a_stop(seconds=10 * day + 30)
        deadline = training().after(stop, NOON + timedelta(days=10), now=now).deadline
        assert deadline == pytest.approx(now + 30, abs=0.1)


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

    @pytest.mark.parametrize(("is_last", "section"), [(False, Section.STEP), (True, Section.SAVE)])
    def test_is_saving_after_the_validation_that_ends_it_early(self, is_last, section):
        validated = Validated(step=6, metrics=BundleMetrics(), is_last=is_last)
        assert self.progress(STARTED, a_step(6), validated).section(stopping=False) is section

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
            Validated(step=5, metrics=BundleMetrics(), is_last=True),
        ],
        ids=lambda report: report.kind,
    )
    def test_any_report_is_progress(self, report):
        assert self.progress(report).moved_at == 100.0

    def test_knows_where_a_resumed_run_stands(self):
        assert (self.progress(STARTED).step, self.progress(STARTED, a_step(5)).step) == (4, 5)


class TestNextMove:
    def move(
        self, stop_request: StopRequest, *, has_asked: bool = False, at: float = 0.0, hung: bool = False
    ) -> Move:
        progress = Progress(moved_at=at - 1000.0 if hung else at)
        return next_move(
            stop_request,
            progress,
            LIMITS,
            has_asked=has_asked,
            margin=SECOND,
            now=at,
        )

    @pytest.mark.parametrize(
        ("stop_request", "options", "move"),
        [
            (nobody(), {}, Move.NONE),
            (asked(), {}, Move.ASK_TO_STOP),
            (asked(), {"has_asked": True}, Move.NONE),
            (noticed(), {}, Move.NONE),
            (noticed(), {"at": 2}, Move.ASK_TO_STOP),
            (asked(), {"has_asked": True, "at": 28.9}, Move.NONE),
            (asked(), {"has_asked": True, "at": 29.1}, Move.END_AT_DEADLINE),
            (noticed(), {"has_asked": True, "at": 29.1}, Move.END_AT_DEADLINE),
            (asked(seconds=-5), {}, Move.END_AT_DEADLINE),
            (nobody(), {"hung": True}, Move.END_AS_HUNG),
            (asked(), {"has_asked": True, "hung": True}, Move.END_AS_HUNG),
            (asked(seconds=-5), {"hung": True}, Move.END_AT_DEADLINE),
        ],
    )
    def test_of_a_running_child(self, stop_request, options, move):
        assert self.move(stop_request, **options) is move

    def test_a_child_is_ended_the_margin_before_the_deadline(self):
        deadline = asked().deadline
        assert self.move(asked(), has_asked=True, at=deadline - 1.0) is Move.END_AT_DEADLINE
        assert self.move(asked(), has_asked=True, at=deadline - 1.001) is Move.NONE

    @pytest.mark.parametrize(
        ("has_asked", "silent", "move"),
        [
            (False, 10.0, Move.ASK_TO_STOP),
            (False, 10.1, Move.END_AS_HUNG),
            (True, 30.0, Move.NONE),
            (True, 30.1, Move.END_AS_HUNG),
        ],
    )
    def test_a_child_that_was_asked_to_stop_has_the_time_of_a_save(self, has_asked, silent, move):
        progress = Progress(moved_at=0.0, step=1, num_steps=9, has_stepped=True)
        options = {"has_asked": has_asked, "margin": SECOND, "now": silent}
        assert next_move(asked(seconds=60), progress, LIMITS, **options) is move


def ended(outcome: Outcome, *, failure: FailureClass | None = None) -> Ended:
    return Ended(outcome=outcome, failure_class=failure, message="why", last_step=7)


def the_end(end: ChildEnd, *, bundle: BundleRef | None = BUNDLE, puts_manifest: bool = True):
    return conclude(end, last_step=5, bundle=bundle, puts_manifest=puts_manifest)


class TestConclude:
    def test_completed(self):
        ending = the_end(ChildEnd(ended(Outcome.COMPLETED), 0))
        assert ending == Ending(Outcome.COMPLETED, 7, None, "why", BUNDLE, 0)
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
        assert ending == Ending(Outcome.FAILED, 7, failure, "why", BUNDLE, 1)
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
                "the training child exited with code 1 and no last report; its log says more",
            ),
            (
                ChildEnd(None, 1),
                FailureClass.INFRA,
                "torchrun ended with code 1 and no training process of it did by itself",
            ),
            (
                ChildEnd(None, 0, (0,)),
                FailureClass.INTERNAL,
                "the training child exited with code 0 and no last report; its log says more",
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
        ("reported", "failure"),
        [
            (FailureClass.INFRA, FailureClass.OOM),
            (FailureClass.INTERNAL, FailureClass.OOM),
            (FailureClass.NUMERIC, FailureClass.NUMERIC),
        ],
    )
    def test_the_word_of_a_peer_of_one_that_was_killed_for_memory(self, reported, failure):
        end = ChildEnd(ended(Outcome.FAILED, failure=reported), 1, oom_kills=1)
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
    def test_a_grant_lets_it_continue_through_an_outage_for_a_day(self, silent, is_fenced):
        assert bool(self.why(silent=silent, grant=Grant(read_at=99_999))) is is_fenced

    def test_a_node_that_is_not_heard_has_ended_before_it_is_called_silent(self):
        assert Settings.model_fields["fence_after"].default < SILENCE

    @pytest.mark.parametrize("silent", [0, 3600])
    def test_a_withdrawn_grant_is_the_end_at_once(self, silent):
        assert "withdrew" in self.why(silent=silent, grant=Grant(read_at=100_000, is_withdrawn=True))

    @pytest.mark.parametrize(("unread", "is_fenced"), [(14, False), (15, True)])
    def test_a_grant_that_cannot_be_read_holds_for_fifteen_seconds(self, unread, is_fenced):
        assert bool(self.why(silent=0, grant=Grant(read_at=100_000 - unread))) is is_fenced
        note("grant that cannot be read", seconds=unread, fenced=is_fenced)
