"""The attempts of a job as bars over time: queued, starting, training, saving, evaluating, and steps done again.

Pure. What a job waits through belongs to the attempt that comes of it.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pydantic import JsonValue

from schemas.lifecycle import STATE_AFTER, TERMINAL, JobState
from services.gateway.job_readmodels import RedoneSteps
from services.gateway.model import JobEvent
from services.gateway.page import formats
from services.gateway.page.views import STATES

STATE_BY_TYPE = {fact.type: state for fact, state in STATE_AFTER.items()}
TYPES = tuple(STATE_BY_TYPE)
"""Events that the picture is drawn from."""
OF_AN_ATTEMPT = (JobState.PROVISIONING, JobState.RUNNING, JobState.STOPPING, JobState.EVALUATING)
COLUMNS: Mapping[str, tuple[JobState, ...]] = {
    "Waiting": (JobState.VALIDATING, JobState.QUEUED, JobState.PAUSED),
    "Starting": (JobState.PROVISIONING,),
    "Training": (JobState.RUNNING,),
    "Saving": (JobState.STOPPING,),
    "Evaluating": (JobState.EVALUATING,),
}
SHOWN = 20
"""Attempts, the newest."""
LEAST_WIDTH = 0.4
"""Percent of the width that the shortest period has, or nobody would see it."""
ENDS = {
    "JobQueued": "did not start",
    "JobPaused": "paused",
    "JobStageCompleted": "stage trained",
    "JobSucceeded": "trained",
    "JobCancelled": "cancelled",
}


@dataclass(frozen=True)
class Period:
    state: JobState
    begins_at: datetime
    ends_at: datetime

    @property
    def length(self) -> timedelta:
        return self.ends_at - self.begins_at


@dataclass(frozen=True)
class Bar:
    """Percent of the picture's width."""

    kind: str
    left: float
    width: float
    title: str
    begins_at: datetime
    ends_at: datetime


@dataclass(frozen=True)
class Attempt:
    number: int
    has_begun: bool
    stage: int | None
    pool: str
    bars: tuple[Bar, ...]
    times: tuple[str, ...]
    """How long it was in the states of each of `COLUMNS`; empty where it was not."""
    ended: str
    again: str
    """The steps that an earlier attempt had done already."""
    words: str


@dataclass(frozen=True)
class Picture:
    attempts: tuple[Attempt, ...]
    columns: tuple[str, ...]
    legend: tuple[tuple[str, str], ...]
    """Kind of a bar and its word, of those that are drawn."""
    begins_at: datetime
    ends_at: datetime
    num_left_out: int

    @property
    def periods(self) -> list[tuple[int, str, float, float]]:
        """Attempt, kind, begin and end in seconds since 1970 of each bar."""
        return [
            (each.number, bar.kind, bar.begins_at.timestamp(), bar.ends_at.timestamp())
            for each in self.attempts
            for bar in each.bars
        ]

    @property
    def words(self) -> str:
        return (
            f"{formats.plural(len(self.attempts), 'attempt')} over {_length(self.ends_at - self.begins_at)}"
        )


def begun_after(events: Sequence[JobEvent]) -> dict[int, int]:
    """Return the step after which each attempt began."""
    return {
        _number(event.data, "attempt"): _number(event.data, "resume", "step")
        + _number(event.data, "stage", "steps_before")
        for event in events
        if event.type == "JobScheduled"
    }


def drawn(events: Sequence[JobEvent], redone: Sequence[RedoneSteps], *, now: datetime) -> Picture | None:
    """Return None where no event is kept. `events`: of `TYPES`, the oldest first."""
    periods, ended = _periods(events, now=now)
    numbers = [*periods][-SHOWN:]
    shown = [period for number in numbers for period in periods[number]]
    if not shown:
        return None
    begins_at, ends_at = shown[0].begins_at, max(period.ends_at for period in shown)
    places = {_number(event.data, "attempt"): event for event in events if event.type == "JobScheduled"}
    after, again_by = begun_after(events), {each.attempt: each for each in redone}

    def bar(kind: str, begin: datetime, end: datetime, title: str) -> Bar:
        whole = (ends_at - begins_at) / timedelta(seconds=1) or 1.0
        left = (begin - begins_at) / timedelta(seconds=1) / whole * 100
        width = max(LEAST_WIDTH, (end - begin) / timedelta(seconds=1) / whole * 100)
        return Bar(kind, round(min(left, 100 - width), 2), round(width, 2), title, begin, end)

    def attempt(number: int) -> Attempt:
        bars = [
            bar(period.state.value, period.begins_at, period.ends_at, _title(period))
            for period in periods[number]
        ]
        again, until = _again(periods[number], after.get(number, 0), again_by.get(number))
        if until is not None:
            bars.append(bar("again", until.begins_at, until.ends_at, again))
        place = places.get(number)
        times = tuple(_time(periods[number], states) for states in COLUMNS.values())
        named = (
            f"{name.lower()} {time}"
            for name, time in zip(COLUMNS, times, strict=True)
            if time != formats.NONE
        )
        return Attempt(
            number=number,
            has_begun=place is not None,
            stage=(place and _number(place.data, "stage", "number")) or None,
            pool=str(place.data.get("pool", "")) if place else "",
            bars=tuple(bars),
            times=times,
            ended=ended.get(number, ""),
            again=again,
            words=", ".join(named),
        )

    attempts = tuple(attempt(number) for number in numbers)
    kinds = {each.kind for row in attempts for each in row.bars}
    legend = [(state.value, STATES[state].word) for state in JobState if state.value in kinds]
    return Picture(
        attempts,
        tuple(COLUMNS),
        (*legend, *([("again", "steps done again")] if "again" in kinds else [])),
        begins_at,
        ends_at,
        len(periods) - len(numbers),
    )


def _periods(events: Sequence[JobEvent], *, now: datetime) -> tuple[dict[int, list[Period]], dict[int, str]]:
    """Return what each attempt went through, and how those ended that have."""
    periods: dict[int, list[Period]] = defaultdict(list)
    ended: dict[int, str] = {}
    state, since, number, row = None, now, 0, 1
    for event in events:
        following = STATE_BY_TYPE[event.type]
        number = _number(event.data, "attempt") or number
        if following is state:
            continue
        if state is not None:
            periods[row].append(Period(state, since, max(since, event.created_at)))
        row_after = number if following in OF_AN_ATTEMPT else number + 1
        if following in TERMINAL or (state in OF_AN_ATTEMPT and row_after != row):
            ended[row] = _end(event)
        state, since, row = following, event.created_at, row_after
        if following in TERMINAL:
            return periods, ended
    if state is not None:
        periods[row].append(Period(state, since, max(since, now)))
    return periods, ended


def _end(event: JobEvent) -> str:
    why = event.data.get("failure_class")
    return why.replace("_", " ") if isinstance(why, str) else ENDS.get(event.type, formats.UNKNOWN)


def _again(periods: Sequence[Period], after: int, redone: RedoneSteps | None) -> tuple[str, Period | None]:
    """Return which steps the attempt did again, and while it trained for how long; None where that is not known."""
    training = next((period for period in periods if period.state is JobState.RUNNING), None)
    if redone is None or training is None:
        return "", None
    words = f"{formats.whole(after + 1)} to {formats.whole(redone.last_step)}"
    if redone.passed_by != redone.attempt:
        return words, training
    if redone.passed_at is None:
        return words, None
    passed_at = min(max(redone.passed_at, training.begins_at), training.ends_at)
    return words, Period(JobState.RUNNING, training.begins_at, passed_at)


def _time(periods: Sequence[Period], states: Sequence[JobState]) -> str:
    lengths = [period.length for period in periods if period.state in states]
    return _length(sum(lengths, timedelta())) if lengths else formats.NONE


def _length(length: timedelta) -> str:
    return formats.duration(length / timedelta(seconds=1))


def _title(period: Period) -> str:
    times = f"{formats.moment(period.begins_at)} to {formats.moment(period.ends_at)}"
    return f"{STATES[period.state].word} {_length(period.length)}: {times}"


def _number(data: Mapping[str, JsonValue], *path: str) -> int:
    """Return 0 where it is not there."""
    value: JsonValue = dict(data)
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, int) else 0
