"""Pure decisions of a runner: when a stop is asked for, when the child hangs, and how an attempt ended here."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from schemas.base import BundleRef, FailureClass
from schemas.job import StopReason
from schemas.node import EXIT_COMPLETED, EXIT_REPORTED
from schemas.training import StartTraining, StopTraining
from services.trainer_agent.protocol import Ended, Outcome, Report, Started, Stepped, Validated

SIGNAL_CODES = 128
TERMINATED = 143
"""Exit code of the peers of a dead process, which torchrun ends; it is a consequence, never the cause."""
DRIFT = 1e-4
"""Share by which a machine's monotonic clock is faster than Postgres' at most: nobody may correct its rate."""


@dataclass(frozen=True)
class PlatformClock:
    """Postgres' clock as this machine knows it from the directives, whatever its own wall clock says (decision 0045).

    A directive carries the time at which it was written, and is heard later. So what this clock says is never ahead
    of Postgres, and behind by no more than the fastest directive took to come, and the drift since then.
    """

    time: datetime | None = None
    """Time at which the directive was written that the clock goes by; None: no directive was heard yet."""
    heard_at: float = 0.0
    """Monotonic seconds at which it was heard."""

    def after(self, time: datetime, *, now: float) -> "PlatformClock":
        """Take in a directive that was written at `time`."""
        is_news = self.time is None or self.monotonic_of(time) > now
        return PlatformClock(time, now) if is_news else self

    def monotonic_of(self, instant: datetime) -> float:
        """Return the monotonic seconds at which it is `instant` on Postgres' clock, or a little later."""
        assert self.time is not None, "directives come before what they are asked for"
        return self.heard_at + (instant - self.time).total_seconds() / (1 - DRIFT)


@dataclass(frozen=True)
class StopRequest:
    """Who wants this runner to stop, and until when. `now` and what is a float are monotonic seconds."""

    notice_wait: timedelta
    clock: PlatformClock = PlatformClock()
    directive: StopTraining | None = None
    noticed_at: float | None = None
    notice_deadline: float | None = None

    def after(
        self, directive: StartTraining | StopTraining, written_at: datetime, *, now: float
    ) -> "StopRequest":
        stop_request = replace(self, clock=self.clock.after(written_at, now=now))
        return (
            replace(stop_request, directive=directive)
            if isinstance(directive, StopTraining)
            else stop_request
        )

    def with_notice(
        self, deadline: datetime | None, *, default_grace: timedelta, now: float
    ) -> "StopRequest":
        """Take in a notice. `deadline`: on Postgres' clock. `default_grace`: used without a deadline or a clock."""
        ends_at = now + default_grace.total_seconds()
        if deadline is not None and self.clock.time is not None:
            ends_at = self.clock.monotonic_of(deadline)
        noticed_at = now if self.noticed_at is None else self.noticed_at
        return replace(self, noticed_at=noticed_at, notice_deadline=ends_at)

    def is_asked(self, now: float) -> bool:
        """Return whether to stop. A directive counts at once; a notice a little later, since one should follow it."""
        if self.directive is not None:
            return True
        if self.noticed_at is None or self.notice_deadline is None:
            return False
        patience = min(self.notice_wait.total_seconds(), (self.notice_deadline - self.noticed_at) / 4)
        return now >= self.noticed_at + patience

    @property
    def reason(self) -> str:
        return self.directive.reason if self.directive else StopReason.PREEMPT

    @property
    def deadline(self) -> float | None:
        """Earliest of all known deadlines; None while nobody asks for a stop."""
        directed = self.clock.monotonic_of(self.directive.deadline) if self.directive else None
        known = (self.notice_deadline, directed)
        return min((deadline for deadline in known if deadline is not None), default=None)


class Section(StrEnum):
    SETUP = "setup"
    STEP = "step"
    SAVE = "save"


@dataclass(frozen=True)
class Progress:
    """What the child has shown so far. `moved_at`: monotonic seconds of its newest report."""

    moved_at: float
    step: int = 0
    num_steps: int = 0
    has_stepped: bool = False

    def after(self, report: Report, *, now: float) -> "Progress":
        match report:
            case Started(num_steps=num_steps, start_step=start_step):
                return replace(self, moved_at=now, num_steps=num_steps, step=start_step)
            case Stepped(step=step):
                return replace(self, moved_at=now, step=step, has_stepped=True)
            case Validated(step=step, is_last=True):
                return replace(self, moved_at=now, num_steps=step)
        return replace(self, moved_at=now)

    def section(self, *, stopping: bool) -> Section:
        """Return the section of training. After the last step, early or not, and after a stop, the child saves."""
        if not self.has_stepped:
            return Section.SETUP
        return Section.SAVE if stopping or self.step >= self.num_steps else Section.STEP

    def is_hung(self, limits: dict[Section, timedelta], *, stopping: bool, now: float) -> bool:
        return now - self.moved_at > limits[self.section(stopping=stopping)].total_seconds()


class Move(StrEnum):
    NONE = "none"
    ASK_TO_STOP = "ask to stop"
    END_AT_DEADLINE = "end at deadline"
    END_AS_HUNG = "end as hung"


def next_move(
    stop_request: StopRequest,
    progress: Progress,
    limits: dict[Section, timedelta],
    *,
    has_asked: bool,
    margin: timedelta,
    now: float,
) -> Move:
    """Return what to do about a running child. `now`: monotonic seconds."""
    asked = stop_request.is_asked(now)
    if asked and stop_request.deadline is not None and now >= stop_request.deadline - margin.total_seconds():
        return Move.END_AT_DEADLINE
    if progress.is_hung(limits, stopping=has_asked, now=now):
        return Move.END_AS_HUNG
    return Move.ASK_TO_STOP if asked and not has_asked else Move.NONE


@dataclass(frozen=True)
class ChildEnd:
    """All that is known of a child's end."""

    ended: Ended | None
    """Last report of the child; None where it wrote none."""
    return_code: int
    """Exit code of the training process, or of torchrun where there are several; negative: ended by that signal."""
    rank_codes: tuple[int, ...] = ()
    """Exit code of each training process that ended under its launcher's eyes; 128 + signal where it was killed. No
    code at all: torchrun's processes did not meet, or their launchers died with them."""
    oom_kills: int = 0
    """Number of times that the kernel killed for memory in our control group while the child ran."""
    move: Move = Move.NONE
    """Move by which the runner itself ended the child; NONE where it did not."""
    section: Section = Section.SETUP


@dataclass(frozen=True)
class Ending:
    """The last report of the runner, but for the identity it carries."""

    outcome: Outcome
    last_step: int
    failure_class: FailureClass | None = None
    message: str = ""
    bundle: BundleRef | None = None
    return_code: int | None = None
    lost_connection: bool = False

    @property
    def exit_code(self) -> int:
        return EXIT_COMPLETED if self.outcome is Outcome.COMPLETED else EXIT_REPORTED


def conclude(end: ChildEnd, *, last_step: int, bundle: BundleRef | None, puts_manifest: bool) -> Ending:
    """Return how the attempt ended on this node. Success and causes are the child's word, never an exit code.

    `puts_manifest`: on the node that stores whole bundles, a completed attempt without its final one failed.
    """
    ended = end.ended
    step = max(last_step, ended.last_step) if ended else last_step
    failure = _failure(end)
    if failure is None and ended and ended.outcome is Outcome.COMPLETED and puts_manifest and bundle is None:
        failure = FailureClass.INFRA, "the final bundle could not be stored"
    if failure is not None:
        kind, message = failure
        lost_connection = kind is FailureClass.INFRA and ended is not None and ended.lost_connection
        return Ending(Outcome.FAILED, step, kind, message, bundle, end.return_code, lost_connection)
    outcome = ended.outcome if ended else Outcome.STOPPED
    message = ended.message if ended else "ended at the stop's deadline before it had saved"
    return Ending(outcome, step, None, message, bundle, end.return_code)


def _failure(end: ChildEnd) -> tuple[FailureClass, str] | None:
    ended = end.ended
    if ended is not None:
        if ended.outcome is not Outcome.FAILED:
            return None
        kind = ended.failure_class or FailureClass.INTERNAL
        # The peers of a process that was killed for memory only see it gone.
        is_effect = end.oom_kills > 0 and kind in {FailureClass.INFRA, FailureClass.INTERNAL}
        return FailureClass.OOM if is_effect else kind, ended.message
    if end.move is Move.END_AS_HUNG:
        return FailureClass.INFRA, f"the training child hung: no progress in its {end.section} section"
    if end.move is Move.END_AT_DEADLINE:
        return None
    return _failure_without_a_word(end)


def _failure_without_a_word(end: ChildEnd) -> tuple[FailureClass, str]:
    killed = [code - SIGNAL_CODES for code in end.rank_codes if code > SIGNAL_CODES and code != TERMINATED]
    if end.oom_kills:
        return FailureClass.OOM, "a training process was killed because memory ran out"
    if killed or end.return_code < 0:
        number = killed[0] if killed else -end.return_code
        return FailureClass.INFRA, f"the training child was ended by signal {number}"
    if not end.rank_codes:
        message = f"torchrun ended with code {end.return_code} and no training process of it did by itself"
        return FailureClass.INFRA, message
    message = f"the training child exited with code {end.return_code} and no last report; its log says more"
    return FailureClass.INTERNAL, message
